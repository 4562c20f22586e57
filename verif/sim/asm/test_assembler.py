"""The assembler, from calls and from text, and the disassembler: exact, with clear errors."""

import random
import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from hdl import isa
from hdl.config import Config
from hdl.encoding import bundle_words, pack, unpack
from hdl.isa import Kind, Operand, Operation, ScalarOp, Slot, VectorOp
from sim.asm.assembler import Assembler, Bundle, Program
from sim.asm.disassembler import BANKS, disassemble, operand_fault, written_registers
from sim.asm.operands import Register, imm, m, s, sem, v, word
from sim.asm.text import AssemblyError, assemble
from tools.docs.slots import method_name


def built(fill: Callable[..., Any]) -> tuple[dict, tuple[int, ...]]:
    """Slots and immediates of a bundle that the function `fill` fills."""
    asm = Assembler()
    with asm.bundle() as b:
        fill(b)
    slots, values, reserved = unpack(asm.assemble().bundles[0])
    assert reserved == 0
    return slots, values


def random_code(rng: random.Random, operand: Operand, width: int) -> int:
    while operand_fault(operand, code := rng.getrandbits(width)):
        pass
    return code


def random_bundle(rng: random.Random, tidy: bool) -> tuple[int, list[Operation]]:
    """A random legal bundle and its operations; if ``tidy``, unused fields are zero."""
    slots: dict[Slot, dict[str, int]] = {}
    operations = []
    written: set[str] = set()
    for slot, widths in isa.SLOTS.items():
        if rng.random() < 0.3:
            continue
        operation = rng.choice([known for known in isa.OPERATIONS if slot in known.slots])
        fields = {"op": operation.op.value}
        for operand in operation.operands:
            fields[operand.field] = random_code(rng, operand, widths[operand.field])
        if not written.isdisjoint(registers := written_registers(operation, fields)):
            continue
        written.update(registers)
        if not tidy:
            fields = {name: rng.getrandbits(width) for name, width in widths.items()} | fields
        slots[slot] = fields
        operations.append(operation)
    values = [rng.choice([rng.getrandbits(32), 1000, 5, 0, 0x3F800000, 0x7FC00000])
              for _ in range(isa.IMMEDIATES)]
    return pack(slots, tuple(values)), operations


def test_text_of_every_legal_bundle_assembles_to_its_bits() -> None:
    seed = 1
    rng = random.Random(seed)
    seen = set()
    for number in range(1200):
        bundle, operations = random_bundle(rng, tidy=number % 2 == 0)
        text = disassemble(bundle)
        assert "illegal" not in text, (seed, number)
        assert "conflict" not in text, (seed, number)
        assert assemble(text).bundles == (bundle,), (seed, number, text)
        seen |= {(type(operation.op), operation.name) for operation in operations}
    assert len(seen) == len(isa.OPERATIONS)


def test_text_of_any_bits_assembles_to_them() -> None:
    seed = 2
    rng = random.Random(seed)
    illegal = 0
    for number in range(500):
        bundle = rng.getrandbits(isa.BUNDLE_BITS)
        text = disassemble(bundle)
        illegal += "illegal" in text
        assert assemble(text).bundles == (bundle,), (seed, number, text)
    assert illegal > 400


def test_listing_of_a_random_program_assembles_to_it() -> None:
    seed = 3
    rng = random.Random(seed)
    names = {"begin": 0, "middle": 20, "also_middle": 20, "end": 60}
    bundles = []
    for _ in range(60):
        bundle, _ = random_bundle(rng, tidy=True)
        slots, values, _ = unpack(bundle)
        target = rng.choice([0, 20, 60, 3])
        bundles.append(pack(slots, tuple(rng.choice([target, value]) for value in values)))
    program = Program(tuple(bundles), names)
    again = assemble(program.listing())
    assert again == program, seed
    assert "s1.jump" in program.listing()
    assert list(again.labels) == list(names)


def operand_text(operand: Operand, operation: Operation) -> tuple[str, object]:
    """An example of an operand: as assembly text, and as argument of a call."""
    if operand.kind is Kind.IMMEDIATE:
        return "here", "here"
    if operand.kind is Kind.SOURCE:
        return "100", 100
    if operand.kind is Kind.VECTOR_SOURCE:
        return "v9", v[9]
    bank: dict = {"s": s, "v": v, "m": m, "sem": sem}
    return f"{BANKS[operand.kind][0]}3", bank[BANKS[operand.kind][0]][3]


@pytest.mark.parametrize("slot", isa.SLOTS)
def test_calls_and_text_of_each_operation_make_the_same_fields(slot: Slot) -> None:
    for operation in isa.OPERATIONS:
        if slot not in operation.slots:
            continue
        pairs = [operand_text(operand, operation) for operand in operation.operands]
        asm = Assembler()
        asm.label("here")
        with asm.bundle() as b:
            getattr(getattr(b, slot), method_name(operation))(*(value for _, value in pairs))
        text = f"here: {{ {slot}.{operation.name} {', '.join(word for word, _ in pairs)} }}"
        program = asm.assemble()
        assert program == assemble(text), text
        fields = unpack(program.bundles[0])[0]
        used = {operand.field for operand in operation.operands}
        for operand in operation.operands:
            expected = {Kind.IMMEDIATE: 1, Kind.SOURCE: isa.FIRST_IMMEDIATE,
                        Kind.VECTOR_SOURCE: isa.VECTOR_FLAG + 9}.get(operand.kind, 3)
            assert fields[slot][operand.field] == expected, text
        assert fields[slot]["op"] == operation.op.value
        assert not any(value for name, value in fields[slot].items() if name not in {"op"} | used)
        assert not any(any(other.values()) for place, other in fields.items() if place != slot)


@pytest.mark.parametrize(("value", "code"), [
    (0, 48), (15, 63), (-8, 40), (0.0, 48), (np.int64(3), 51), (0xFFFFFFFF, 47), (s[0], 0),
    (s[31], 31), (v[31], 95),
])
def test_short_sources_need_no_immediate(value: float | Register, code: int) -> None:
    slots, values = built(lambda b: b.v0.fadd(v[1], v[2], value))
    assert slots[Slot.V0]["b"] == code
    assert values == (0, 0, 0)


@pytest.mark.parametrize(("value", "bits"), [
    (16, 16), (-9, 0xFFFFFFF7), (-1 << 31, 1 << 31), ((1 << 32) - 1 - 100, 0xFFFFFF9B),
    (1.0, 0x3F800000), (-0.0, 0x80000000), (0.1, 0x3DCCCCCD), (np.float32(1.5), 0x3FC00000),
    (float("inf"), 0x7F800000), (float("-nan"), 0x7FC00000), (1 + 2**-24, 0x3F800000),
    (1 + 3 * 2**-24, 0x3F800002), (np.float64(2), 0x40000000), (3e-44, 21),
])
def test_other_sources_get_an_immediate(value: float | np.float32, bits: int) -> None:
    slots, values = built(lambda b: b.v0.fadd(v[1], v[2], value))
    assert slots[Slot.V0]["b"] == 32
    assert values == (bits, 0, 0)
    assert word(value) == bits


def test_equal_immediates_are_shared_in_the_order_of_slots() -> None:
    def fill(b: Bundle) -> None:
        b.st.store(v[1], s[1], 1000)
        b.v1.fmul(v[2], v[3], 2.0)
        b.v0.add(v[4], v[5], 0x40000000)
        b.ld.load(v[6], s[1], 2000)
        b.s0.add(s[2], s[3], -2)

    slots, values = built(fill)
    assert values == (0x40000000, 2000, 1000)
    assert slots[Slot.V0]["b"] == slots[Slot.V1]["b"] == 32
    assert slots[Slot.LOAD]["b"] == 33
    assert slots[Slot.STORE]["b"] == 34


def test_small_targets_take_an_immediate_too() -> None:
    slots, values = built(lambda b: b.s1.beq(s[1], 5, 5))
    assert slots[Slot.S1]["b"] == 53
    assert slots[Slot.S1]["d"] == 0
    assert values == (5, 0, 0)


def test_defaults_are_offset_zero_and_all_elements() -> None:
    assert built(lambda b: b.st.store(v[1], s[2])) == built(
        lambda b: b.st.store(v[1], s[2], 0, mask=m[0]))
    slots, _ = built(lambda b: b.st.store(v[1], s[2], mask=m[5]))
    assert slots[Slot.STORE] == {"op": 1, "d": 1, "a": 2, "b": 48, "m": 5}


def test_labels_reach_forward_and_back() -> None:
    asm = Assembler()
    asm.label("top")
    with asm.bundle() as b:
        b.s1.bne(s[1], s[2], "end")
    with asm.bundle() as b:
        b.s1.jump("top")
        b.s0.add(s[3], s[0], "end")
    asm.label("end")
    program = asm.assemble()
    assert program.labels == {"top": 0, "end": 2}
    assert asm.here == len(program) == 2
    assert unpack(program.bundles[0])[1] == (2, 0, 0)
    assert unpack(program.bundles[1])[1] == (2, 0, 0)
    slots = unpack(program.bundles[1])[0]
    assert (slots[Slot.S0]["b"], slots[Slot.S1]["b"]) == (32, 33)


def test_words_are_those_of_the_bundles() -> None:
    program = assemble("{ s0.add s1, s2, 100 } { imm2=0x89ABCDEF }")
    assert list(program) == list(program.bundles)
    assert program[-1] == program.bundles[-1]
    words = program.words()
    assert words.dtype == np.uint32
    assert words.shape == (2, isa.BUNDLE_WORDS)
    assert words.tolist() == [list(bundle_words(bundle)) for bundle in program.bundles]
    assert words[1, -1] == 0x89ABCDEF
    assert Assembler().assemble().words().shape == (0, isa.BUNDLE_WORDS)


def test_a_failed_bundle_is_not_part_of_the_program() -> None:
    asm = Assembler()
    with pytest.raises(ZeroDivisionError), asm.bundle() as b:
        b.s0.add(s[1], s[1], 1 // 0)
    assert asm.here == 0


def twice(b: Bundle) -> None:
    b.v0.lane(v[1])
    b.v0.lane(v[2])


def many(b: Bundle) -> None:
    b.s0.add(s[1], s[1], 100)
    b.ld.load(v[1], s[1], 200)
    b.st.store(v[1], s[1], 300)
    b.v0.fadd(v[2], v[2], 1.0)


def four_with_names(b: Bundle) -> None:
    b.immediate(0, 100)
    b.s0.add(s[1], s[1], imm[1])
    b.v0.add(v[1], v[1], 300)
    b.v1.add(v[2], v[2], 400)


def conflict(b: Bundle) -> None:
    b.v0.lane(v[3])
    b.pop.pop(v[3])


def immediate_twice(b: Bundle) -> None:
    b.immediate(1, 7)
    b.immediate(1, 8)


@pytest.mark.parametrize(("fill", "error", "message"), [
    (twice, ValueError, "bundle 0: slot v0 is already used"),
    (many, ValueError, "bundle 0, v0.fadd: b: a bundle has 3 immediates, too few for "
                       "0x64, 0xc8, 0x12c, 0x3f800000"),
    (four_with_names, ValueError, "bundle 0, v1.add: b: a bundle has 3 immediates, too few for "
                                  "0x64, 0x0, 0x12c, 0x190"),
    (conflict, ValueError, "bundle 0, pop.pop: v3 is already written by v0.lane"),
    (immediate_twice, ValueError, "bundle 0: immediate imm1 must be set only once, but is set to "
                                  "0x7 and to 8"),
    (lambda b: b.immediate(3, 1), ValueError, "immediate number must be from 0 to 2, not 3"),
    (lambda b: b.v0.feq(m[0], v[1], 0), ValueError,
     "bundle 0, v0.feq: d must be a mask register other than m[0], which cannot be written"),
    (lambda b: b.v0.fadd(s[1], v[1], v[2]), TypeError,
     "bundle 0, v0.fadd: d must be a vector register, not s[1]"),
    (lambda b: b.v0.fadd(v[1], 3, v[2]), TypeError,
     "bundle 0, v0.fadd: a must be a vector register, not 3"),
    (lambda b: b.v0.fadd(v[1], v[3], m[2]), TypeError,
     "bundle 0, v0.fadd: b must be a vector or scalar register, a number or a label, not m[2]"),
    (lambda b: b.s0.add(s[1], s[3], v[2]), TypeError,
     "bundle 0, s0.add: b must be a scalar register, a number or a label, not v[2]"),
    (lambda b: b.s0.add(s[1], s[3], None), TypeError,
     "bundle 0, s0.add: b: a number must be an integer or a float, not None"),
    (lambda b: b.s0.add(s[1], s[3], True), TypeError,
     "bundle 0, s0.add: b: a number must be an integer or a float, not True"),
    (lambda b: b.s0.add(s[1], s[3], 1 << 32), ValueError,
     "bundle 0, s0.add: b: an integer must be from -2**31 to 2**32 - 1, not 4294967296"),
    (lambda b: b.s0.add(s[1], s[3], -(1 << 31) - 1), ValueError,
     "bundle 0, s0.add: b: an integer must be from -2**31 to 2**32 - 1, not -2147483649"),
    (lambda b: b.v0.move(v[1], 1e39), ValueError,
     "bundle 0, v0.move: b: a float must be within the range of fp32, not 1e+39"),
    (lambda b: b.s1.beq(s[1], 0, 1.0), TypeError,
     "bundle 0, s1.beq: target must be an address or a label, not 1.0"),
    (lambda b: b.s1.jump(0.0), TypeError,
     "bundle 0, s1.jump: target must be an address or a label, not 0.0"),
    (lambda b: b.s1.call(s[1], np.float32(3)), TypeError,
     "bundle 0, s1.call: target must be an address or a label, not "),
    (lambda b: b.s1.loop(s[1], 1.5), TypeError,
     "bundle 0, s1.loop: target must be an address or a label, not 1.5"),
    (lambda b: b.s1.beq(s[1], 0, s[1]), TypeError,
     "bundle 0, s1.beq: target must be an address or a label, not s[1]"),
    (lambda b: b.misc.wait(sem[16], 1), ValueError,
     "semaphore number must be from 0 to 15, not 16"),
    (lambda b: b.v0.lane(v[32]), ValueError,
     "vector register number must be from 0 to 31, not 32"),
    (lambda b: b.v0.lane(v[-1]), ValueError,
     "vector register number must be from 0 to 31, not -1"),
    (lambda b: b.v0.lane(v["1"]), TypeError,  # type: ignore[index]
     "vector register number must be an integer, not '1'"),
    (lambda b: b.operation("s0", "jump", 1), ValueError,
     "bundle 0: operation of slot s0 must be one of add, "),
    (lambda b: b.operation("s2", "add", s[1], s[1], 1), ValueError,
     "bundle 0: slot must be one of s0, s1, v0, v1, ld, st, push, pop, misc, not 's2'"),
    (lambda b: b.operation("s0", "add", s[1], s[1]), TypeError,
     "bundle 0, s0.add: number of operands must be 3, not 2"),
    (lambda b: b.operation("st", "store", v[1]), TypeError,
     "bundle 0, st.store: number of operands must be 2 to 4, not 1"),
    (lambda b: b.operation("s0", "nop", s[1]), TypeError,
     "bundle 0, s0.nop: number of operands must be 0, not 1"),
    (lambda b: b.operation("pop", "pop", v[1], d=3), ValueError,
     "bundle 0, pop.pop: d must be a field that the operation ignores"),
    (lambda b: b.operation("pop", "pop", v[1], m=3), ValueError,
     "bundle 0, pop.pop: field must be one of op, d, not 'm'"),
    (lambda b: b.raw("pop", d=32), ValueError, "bundle 0, slot pop: d must fit 5 bits, not 32"),
    (lambda b: b.raw("pop", d=1.0), TypeError,
     "bundle 0, slot pop: d must be an integer, not 1.0"),
    (lambda b: b.reserved(1 << 22), ValueError,
     "bundle 0: reserved must fit 22 bits, not 4194304"),
    (lambda b: b.s1.jump("3x"), ValueError, "label must be an ASCII identifier, not '3x'"),
    (lambda b: b.s1.jump("sem3"), ValueError,
     "label must not look like a register, as 'sem3' does"),
])
def test_bundle_refuses(fill: Callable[..., Any], error: type[Exception], message: str) -> None:
    asm = Assembler()
    with pytest.raises(error, match=re.escape(message)), asm.bundle() as b:
        fill(b)
    assert asm.here == 0


def test_message_names_the_bundle() -> None:
    asm = Assembler()
    with asm.bundle():
        pass
    with asm.bundle() as b:
        b.s0.add(s[4], s[4], 1)
        with pytest.raises(ValueError, match=r"bundle 1, s1\.call: s4 is already written by s0"):
            b.s1.call(s[4], 0)


def test_s0_may_be_written_twice() -> None:
    slots, _ = built(lambda b: (b.s0.add(s[0], s[1], 1), b.s1.add(s[0], s[2], 1)))
    assert slots[Slot.S0]["d"] == slots[Slot.S1]["d"] == 0


def test_program_refuses() -> None:
    asm = Assembler()
    asm.label("here")
    with pytest.raises(ValueError, match="label 'here' is already at bundle 0"):
        asm.label("here")
    with pytest.raises(TypeError, match="label must be a string, not 3"):
        asm.label(3)  # type: ignore[arg-type]
    for name in ("", "a b", "a.b", "ä"):
        with pytest.raises(ValueError, match=f"label must be an ASCII identifier, not {name!r}"):
            asm.label(name)
    for name in ("s0", "v31", "m9", "imm2"):
        with pytest.raises(ValueError, match=f"must not look like a register, as '{name}' does"):
            asm.label(name)
    with asm.bundle() as b:
        b.s1.jump("there")
        with pytest.raises(ValueError, match="label 'there' must be between bundles"):
            asm.label("there")
        with pytest.raises(ValueError, match="bundle 0 must be closed before the program"):
            asm.assemble()
        with pytest.raises(ValueError, match="bundle 0 must be closed before the next"):
            asm.bundle().__enter__()
    with pytest.raises(ValueError, match="bundle 0: label 'there' is not defined"):
        asm.assemble()
    with pytest.raises(ValueError, match=r"bundle 0 must be open, .* but is closed"):
        b.s0.add(s[1], s[1], 1)
    with pytest.raises(ValueError, match="bundle 0 must be entered only once"):
        b.__enter__()
    with pytest.raises(ValueError, match=r"must be open, .* but is not entered"):
        asm.bundle().s1.halt()
    with pytest.raises(TypeError, match="config must be a Config or None, not 'v2'"):
        Assembler("v2")  # type: ignore[arg-type]


def test_program_must_fit_the_instruction_memory() -> None:
    config = Config.preset("tiny", imem_bundles=2)
    asm = Assembler(config)
    for _ in range(2):
        with asm.bundle():
            pass
    assert len(asm.assemble()) == 2
    with pytest.raises(ValueError, match=r"program must have at most 2 bundles, .* bundle 2 do"), \
            asm.bundle():
        pass
    with pytest.raises(AssemblyError, match="line 2, column 1: program must have at most 2"):
        assemble("{} {}\n{}", config)


def test_registers_show_themselves() -> None:
    assert repr(sem[3]) == "sem[3]"
    assert str(m[7]) == "m7"
    assert v[np.int64(4)] == v[4]
    assert v[3] != s[3]
    assert [len(bank) for bank in (s, v, m, sem, imm)] == [32, 32, 8, 16, 3]


@pytest.mark.parametrize(("slots", "values", "text"), [
    ({}, (), "{ }"),
    ({Slot.S0: {"op": 1, "d": 1, "a": 2, "b": 40}}, (), "{ s0.add s1, s2, -8 }"),
    ({Slot.V0: {"op": 5, "d": 1, "a": 2, "b": 32}}, (0x3DCCCCCD,), "{ v0.fadd v1, v2, 0.1f }"),
    ({Slot.V0: {"op": 5, "d": 1, "a": 2, "b": 32}}, (0x7F800000,),
     "{ v0.fadd v1, v2, 0f7F800000 }"),
    ({Slot.V0: {"op": 18, "d": 1, "a": 2, "b": 32}}, (0xFFFFFC18,), "{ v0.add v1, v2, -1000 }"),
    ({Slot.V0: {"op": 18, "d": 1, "a": 2, "b": 32}}, (1 << 20,), "{ v0.add v1, v2, 0x00100000 }"),
    ({Slot.V1: {"op": 53, "d": 1, "a": 2, "b": 3}}, (), "{ v1.random v1, v2, s3 }"),
    ({Slot.STORE: {"op": 1, "d": 1, "a": 2, "b": 48}}, (), "{ st.store v1, s2 }"),
    ({Slot.STORE: {"op": 1, "d": 1, "a": 2, "b": 48, "m": 4}}, (), "{ st.store v1, s2, 0, m4 }"),
    ({Slot.S1: {"op": 41, "d": 3}}, (), "{ s1.halt d=3 }"),
    ({Slot.POP: {"d": 3}}, (), "{ pop.nop d=3 }"),
    ({Slot.S1: {"op": 32, "b": 33}}, (0, 9), "{ imm1=9 | s1.jump imm1 }"),
    ({Slot.S1: {"op": 32, "b": 32}}, (100,), "{ s1.jump 100 }"),
    ({Slot.S0: {"op": 1, "b": 35}}, (), "{ s0.illegal op=1, d=0, a=0, b=35 }"),
    ({Slot.S0: {"op": 32}}, (), "{ s0.illegal op=32, d=0, a=0, b=0 }"),
    ({Slot.V0: {"op": 12}}, (), "{ v0.illegal op=12, d=0, a=0, b=0, m=0 }"),
    ({Slot.V0: {"op": 18, "b": 96}}, (), "{ v0.illegal op=18, d=0, a=0, b=96, m=0 }"),
    ({Slot.S1: {"op": 34, "d": 3}}, (), "{ s1.illegal op=34, d=3, a=0, b=0 }"),
    ({Slot.MISC: {"op": 16, "d": 16}}, (), "{ misc.illegal op=16, d=16, a=0, b=0 }"),
    ({Slot.LOAD: {"op": 1, "d": 3}, Slot.POP: {"op": 1, "d": 3}}, (),
     "{ ld.load v3, s0, s0 | pop.conflict op=1, d=3 }"),
])
def test_disassembler_writes(slots: dict[Slot, dict[str, int]], values: tuple[int, ...],
                             text: str) -> None:
    bundle = pack(slots, values)
    assert disassemble(bundle) == text
    assert assemble(text).bundles == (bundle,)


def test_disassembler_shows_reserved_bits() -> None:
    position = isa.BUNDLE_BITS - 32 * isa.IMMEDIATES - isa.RESERVED_BITS
    assert disassemble(0x21 << position) == "{ reserved=0x21 }"
    assert assemble("{ reserved=0x21 }").bundles == (0x21 << position,)


def test_disassembler_shows_labels_of_branches_alone() -> None:
    names = {100: "there"}
    assert disassemble(assemble("{ s1.jump 100 }").bundles[0], names) == "{ s1.jump there }"
    assert disassemble(assemble("{ s1.blt s1, s2, 100 }").bundles[0],
                       names) == "{ s1.blt s1, s2, there }"
    assert disassemble(assemble("{ s0.add s1, s2, 100 }").bundles[0],
                       names) == "{ s0.add s1, s2, 100 }"
    # One immediate for both; the text with the label would get two.
    assert disassemble(assemble("{ s0.add s1, s2, 100 | s1.jump 100 }").bundles[0],
                       names) == "{ imm0=100 | s0.add s1, s2, imm0 | s1.jump imm0 }"


def test_text_form_is_free() -> None:
    text = """
    # Comments, blank lines, several bundles in a line, and one in several lines.
    top: again: { s0.add s1,s2 , 0x1F|v0.fadd v1, v2, -1.5e1f } { }  # here too
    {
        s0.and s1, s1, +007
        | s1.bne s1, 0F00000000, again  # hexadecimal floats are for 0f alone
    }
    """.replace("0F00000000", "0f00000000")
    asm = Assembler()
    asm.label("top")
    asm.label("again")
    with asm.bundle() as b:
        b.s0.add(s[1], s[2], 31)
        b.v0.fadd(v[1], v[2], -15.0)
    with asm.bundle():
        pass
    with asm.bundle() as b:
        b.s0.and_(s[1], s[1], 7)
        b.s1.bne(s[1], 0.0, "again")
    assert assemble(text) == asm.assemble()


def refused(call: Callable[..., Any], *operands: float | Register | None) -> None:
    with pytest.raises((TypeError, ValueError)):
        call(*operands)


def test_a_refused_operation_leaves_the_bundle_as_it_was() -> None:
    asm = Assembler()
    with asm.bundle() as b:
        refused(b.st.store, v[1], s[0], 1000, 7)  # the mask, after an immediate
        refused(b.s1.beq, s[1], 2000, s[2])
        refused(b.s1.beq, s[1], imm[2], s[2])
        refused(b.v0.fadd, v[1], v[2], m[1])
        refused(b.immediate, 1, None)
        b.ld.load(v[1], s[0], 3000)
        refused(b.pop.pop, v[1])
        b.v0.fadd(v[2], v[3], 1e6)
        refused(b.v1.fadd, v[2], v[3], 2e6)
        b.s0.add(s[1], s[1], 4000)
        refused(b.s1.add, s[2], s[2], 5000)
        # All three immediates are still free, and nothing else is in use.
        b.s1.add(s[2], s[2], 3000)
        b.v1.lane(v[4])
    same = Assembler()
    with same.bundle() as b:
        b.ld.load(v[1], s[0], 3000)
        b.v0.fadd(v[2], v[3], 1e6)
        b.s0.add(s[1], s[1], 4000)
        b.s1.add(s[2], s[2], 3000)
        b.v1.lane(v[4])
    assert asm.assemble().bundles == same.assemble().bundles


def test_an_immediate_that_is_set_later_serves_those_that_want_it() -> None:
    asm = Assembler()
    with asm.bundle() as b:
        b.s0.add(s[1], s[1], 100)
        b.s1.add(s[2], s[2], 200)
        b.v0.add(v[1], v[1], 300)
        b.immediate(0, 300)
    assert asm.assemble().listing().count("300") == 1


@pytest.mark.parametrize(("text", "line", "column", "message"), [
    ("{ s0.add s1, s2, 1", 1, 19, "expected '|', ',' or '}', not the end of the text"),
    ("{ s0.add s1, s2, 1 }\n}", 2, 1, "expected a label or '{', not '}'"),
    ("\n\n  loop { }", 3, 8, "expected ':' after a label, not '{'"),
    ("{ s0 add }", 1, 6, "expected '.' after a slot, not 'add'"),
    ("{ s2.add s1, s1, 1 }", 1, 3, "slot must be one of s0, s1, v0, v1, ld, st, push, pop, misc, "
                                   "not 's2'"),
    ("{ s0.jump 3 }", 1, 6, "operation of slot s0 must be one of add,"),
    ("{ s0. }", 1, 7, "expected an operation, not '}'"),
    ("{ s0.add s1, s2, 1 | }", 1, 22, "expected a slot, not '}'"),
    ("{ s0.add s1, , 1 }", 1, 14, "expected a register, a number or a label, not ','"),
    ("{ s0.add s1, s32, 1 }", 1, 14, "scalar register number must be from 0 to 31, not 32"),
    ("{ s0.add s1, s2 }", 1, 6, "bundle 0, s0.add: number of operands must be 3, not 2"),
    ("{ s0.add s1, s2, 1 }\n{ s0.add v1, s2, 1 }", 2, 10,
     "bundle 1, s0.add: d must be a scalar register, not v[1]"),
    ("{ v0.fadd v1, v2, 1.5 }", 1, 19, "a number must be an integer, a float as 1.5f, or the "
                                       "pattern of one as 0f3FC00000, not '1.5'"),
    ("{ v0.fadd v1, v2, 0x }", 1, 19, "a number must be an integer"),
    ("{ v0.fadd v1, v2, 0f3F8000000 }", 1, 19, "a number must be an integer"),
    ("{ v0.fadd v1, v2, 12ab }", 1, 19, "a number must be an integer"),
    ("{ v0.fadd v1, v2, 1e39f }", 1, 19, "a float must be within the range of fp32, not 1e+39"),
    ("{ s0.add s1, s2, 4294967296 }", 1, 18, "an integer must be from -2**31 to 2**32 - 1"),
    ("{ s0.add s1, s2, $3 }", 1, 18, "text must be names, numbers and { } | : , . =, not '$'"),
    ("{ s1.jump 1.0f }", 1, 11, "target must be an address or a label, not 1.0"),
    ("{ s1.loop s1, 2.5f }", 1, 15, "target must be an address or a label, not 2.5"),
    ("{ s1.beq s1, 2, s3 }", 1, 17, "target must be an address or a label, not s[3]"),
    ("{ s1.jump away }\n", 1, 11, "label 'away' is not defined"),
    ("{ imm0=away }\n", 1, 8, "label 'away' is not defined"),
    ("a: { }\na: { }", 2, 1, "label 'a' is already at bundle 0"),
    ("s3: { }", 1, 1, "label must not look like a register, as 's3' does"),
    ("{ v0.feq m0, v1, v2 }", 1, 10, "d must be a mask register other than m[0]"),
    ("{ v0.lane v1 | v1.lane v1 }", 1, 19, "v1 is already written by v0.lane"),
    ("{ v0.lane v1 | v0.lane v2 }", 1, 19, "slot v0 is already used"),
    ("{ s0.add s1, s1, 20 | s1.add s2, s2, 30 | v0.add v1, v1, 40 | v1.add v2, v2, 50 }", 1, 78,
     "a bundle has 3 immediates, too few for 0x14, 0x1e, 0x28, 0x32"),
    ("{ imm3=1 }", 1, 3, "immediate number must be from 0 to 2, not 3"),
    ("{ imm0=1 | imm0=2 }", 1, 12,
     "immediate imm0 must be set only once, but is set to 0x1 and to 2"),
    ("{ s5=1 }", 1, 3, "only imm0, imm1, imm2 and reserved can be set, not 's5'"),
    ("{ reserved=x }", 1, 12, "expected an integer, not 'x'"),
    ("{ reserved=1.5f }", 1, 12, "expected an integer, not '1.5f'"),
    ("{ s1.halt d=3, d=4 }", 1, 16, "field 'd' is already given"),
    ("{ s1.halt d=3, s4 }", 1, 16, "operands must come before fields"),
    ("{ s1.halt d=3, 4 }", 1, 16, "operands must come before fields"),
    ("{ s1.halt d=32 }", 1, 11, "d must fit 5 bits, not 32"),
    ("{ s1.halt slot=3 }", 1, 11, "field must be one of op, d, a, b, not 'slot'"),
    ("{ s0.illegal s1 }", 1, 14, "operands of illegal must be fields, as in op=1"),
    ("{ s0.illegal d=1, op=64 }", 1, 19, "op must fit 6 bits, not 64"),
])
def test_text_errors_have_a_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(AssemblyError, match=re.escape(message)) as caught:
        assemble(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


def test_text_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="text must be a string, not 3"):
        assemble(3)  # type: ignore[arg-type]


def test_codes_of_a_bundle_by_hand() -> None:
    """One bundle whose bits are written out, so that an error in shared code shows."""
    (bundle,) = assemble("{ s0.add s1, s2, 3 | v0.fadd v1, v2, 1.0f | st.store v7, s8, s9, m3 "
                         "| misc.wait sem5, 1000 }").bundles
    expected = 1 | 1 << 6 | 2 << 11 | 51 << 16
    expected |= (5 | 1 << 6 | 2 << 11 | 32 << 16) << 44
    expected |= (1 | 7 << 2 | 8 << 7 | 9 << 12 | 3 << 18) << 114
    expected |= (16 | 5 << 5 | 33 << 15) << 149
    expected |= 0x3F800000 << 192 | 1000 << 224
    assert bundle == expected
    assert (ScalarOp.ADD, VectorOp.FADD) == (1, 5)


def test_transfers_and_the_other_core() -> None:
    asm = Assembler(Config.preset("tiny"))
    for fill in (lambda b: b.misc.dma(s[3]), lambda b: b.misc.dma(200),
                 lambda b: b.misc.signal_other(sem[4], 1)):
        with asm.bundle() as b:
            fill(b)
    program = asm.assemble()
    text = "{ misc.dma s3 } { misc.dma 200 } { misc.signal_other sem4, 1 }"
    assert program == assemble(text)
    assert [disassemble(bundle) for bundle in program.bundles] == [
        "{ misc.dma s3 }", "{ misc.dma 200 }", "{ misc.signal_other sem4, 1 }"]
    slots, values, _ = unpack(program.bundles[1])
    assert slots[Slot.MISC] == {"op": 24, "d": 0, "a": 0, "b": 32}
    assert values[0] == 200
    message = re.escape("bundle 3, misc.dma: descriptor must be a scalar register, ")
    with pytest.raises(TypeError, match=message), asm.bundle() as b:
        b.misc.dma(cast(Any, v[1]))


def test_a_chip_of_one_core_has_no_other() -> None:
    config = Config.preset("tiny", cores=1)
    asm = Assembler(config)
    message = re.escape("bundle 0, misc.signal_other: the chip must have 2 cores, not 1")
    with pytest.raises(ValueError, match=message), asm.bundle() as b:
        b.misc.signal_other(sem[1], 1)
    with pytest.raises(AssemblyError, match=message):
        assemble("{ misc.signal_other sem1, 1 }", config)
    assert asm.config is config
    assert Assembler().config is None
    message = re.escape("bundle 0, misc.signal_remote: the chip must have links, not link_bytes=0")
    text = "{ misc.signal_remote sem1, s2, 7 }"
    with pytest.raises(AssemblyError, match=message):
        assemble(text, config)
    linked = Assembler(Config.preset("tiny", link_bytes=16))
    with linked.bundle() as b:
        b.misc.signal_remote(sem[1], s[2], 7)
    assert [disassemble(bundle) for bundle in linked.assemble().bundles] == [text]
