"""The instruction set's definition is consistent, and generated pages are up to date."""

import ast
import re

import numpy as np
import pytest

from golden.core import GoldenCore
from golden.mxu import matmul
from golden.numerics import add_f32
from golden.vpu import fmax
from hdl import isa
from hdl.config import PRESETS, Config
from hdl.dma.format import DESCRIPTOR, DESCRIPTOR_WORDS, DmaSpace, pack_descriptor
from hdl.encoding import pack
from hdl.isa import Fault, Kind, Slot
from sim.asm import slots
from sim.asm.assembler import Assembler
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.disassembler import BANKS
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.models.core import CoreModel
from tools.docs import isa as isa_doc
from tools.docs import slots as slot_source

MANUAL = isa_doc.PATH.read_text(encoding="utf-8")


def test_codes_and_names_are_unique_in_each_slot() -> None:
    for slot in isa.SLOTS:
        operations = [operation for operation in isa.OPERATIONS if slot in operation.slots]
        assert operations
        assert len({operation.op.value for operation in operations}) == len(operations)
        assert len({operation.name for operation in operations}) == len(operations)
        for operation in operations:
            assert isa.operation(slot, operation.op.value) is operation
            assert 0 < operation.op.value < 1 << isa.SLOTS[slot]["op"]
        assert isa.operation(slot, 0) is None


def test_every_code_is_an_operation() -> None:
    # By type and name: members of different enumerations are equal if their numbers are.
    listed = {(type(operation.op), operation.op.name) for operation in isa.OPERATIONS}
    assert len(listed) == len(isa.OPERATIONS)
    enums = {enum for enum, _ in listed}
    assert listed == {(enum, op.name) for enum in enums for op in enum if op}


def test_operands_fit_their_fields() -> None:
    for operation in isa.OPERATIONS:
        fields = [operand.field for operand in operation.operands]
        assert len(set(fields)) == len(fields)
        for slot in operation.slots:
            for operand in operation.operands:
                width = isa.SLOTS[slot][operand.field]
                if operand.kind is Kind.SOURCE:
                    assert width == isa.SOURCE_BITS
                elif operand.kind is Kind.VECTOR_SOURCE:
                    assert width == isa.SOURCE_BITS + 1
                else:
                    assert BANKS[operand.kind][1] <= 1 << width


def test_faults_are_explained() -> None:
    assert set(isa.FAULTS) == set(Fault)
    assert all(fault in isa.Fault for operation in isa.OPERATIONS for fault in operation.faults)


def test_manual_is_what_its_source_writes() -> None:
    assert isa_doc.document() == MANUAL, "run `make isa`"


def test_manual_has_every_operation_once_in_its_slots() -> None:
    for operation in isa.OPERATIONS:
        row = f"| {operation.op.value} | {isa_doc.syntax(operation)} |"
        _, section = MANUAL.split(f"### {isa_doc._SLOT_TITLES[operation.slots]}\n")
        assert section.split("\n#")[0].count(row) == 1, row


def test_manual_has_every_fault_and_preset() -> None:
    for fault in Fault:
        assert f"| {fault.value} | {fault.name} |" in MANUAL
    assert f"|  | {' | '.join(f'`{name}`' for name in PRESETS)} |" in MANUAL


def test_manual_shows_bits_of_each_field() -> None:
    rows = re.findall(r"\| `(\w+)` \| `(\w+)` \| (\d+)(?::(\d+))? \| (\d+) \|", MANUAL)
    assert len(rows) == sum(len(widths) for widths in isa.SLOTS.values())
    for slot, field, high, low, width in rows:
        ones = pack({Slot(slot): {field: (1 << int(width)) - 1}})
        assert ones == (2 << int(high)) - (1 << int(low or high))


def test_methods_are_what_their_source_writes() -> None:
    assert slot_source.source() == slot_source.PATH.read_text(encoding="utf-8"), "run `make isa`"


def test_each_slot_has_a_method_for_each_of_its_operations() -> None:
    with Assembler().bundle() as bundle:
        for slot in isa.SLOTS:
            methods = {name for name in dir(getattr(bundle, slot)) if not name.startswith("_")}
            assert methods == {slot_source.method_name(operation)
                               for operation in isa.OPERATIONS if slot in operation.slots}
    assert set(slots.__all__) == set(slot_source.CLASSES)


def test_parameters_name_what_operands_are() -> None:
    scalar, vector = Slot.S1, Slot.V0
    named = {(slot, operation.name): [slot_source.parameter(operation, operand)
                                      for operand in operation.operands]
             for slot in isa.SLOTS for operation in isa.OPERATIONS if slot in operation.slots}
    assert named[scalar, "jump"] == ["target"]
    assert named[scalar, "call"] == named[scalar, "loop"] == ["d", "target"]
    assert named[scalar, "beq"] == ["a", "b", "target"]
    # Their codes are those of branches.
    assert named[vector, "ltu"] == named[vector, "geu"] == ["d", "a", "b"]
    assert named[Slot.STORE, "store"] == ["d", "base", "offset", "mask"]
    assert named[vector, "select"] == ["d", "a", "b", "mask"]
    for names in named.values():
        assert len(set(names)) == len(names)


def example(title: str) -> str:
    """The program in the manual's section with this title."""
    _, section = MANUAL.split(f"# {title}\n")
    text, _, _ = section.partition("```asm\n")[2].partition("```")
    return text


def test_python_example_of_the_manual_builds_what_its_text_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL)
    ast.parse(code)
    names: dict = {}
    exec(code, names)
    text = "loop: { v0.fadd v1, v1, 1.5f | ld.load v2, s2, 8 | s1.loop s1, loop } { s1.halt }"
    assert names["program"] == assemble(text)


AT_Y = 120
"""Address of the layer's result in vector memory."""


def layer(config: Config, count: int, seed: int) -> tuple[np.ndarray, list[int], np.ndarray]:
    """For the manual's layer: vector memory, scalar registers from s1 on, and the result.

    The layer has ``count`` vector registers of rows.
    """
    rng = np.random.default_rng(seed)
    lanes = config.lanes
    w = rng.standard_normal((lanes, lanes)).astype(np.float32)
    x = rng.standard_normal((count * config.sublanes, lanes)).astype(np.float32)
    bias = rng.standard_normal(lanes).astype(np.float32)
    vmem = np.zeros((AT_Y, config.sublanes, lanes), np.uint32)
    at_w, at_x, at_bias = 3, 40, 2
    vmem[at_w:at_w + config.tile_vregs] = w.view(np.uint32).reshape(-1, config.sublanes, lanes)
    vmem[at_x:at_x + count] = x.view(np.uint32).reshape(-1, config.sublanes, lanes)
    vmem[at_bias, 0] = bias.view(np.uint32)
    product = add_f32(matmul(x, w, array=lanes), bias).view(np.uint32)
    y = fmax(product, np.zeros_like(product)).reshape(-1, config.sublanes, lanes)
    assert np.count_nonzero(y) > y.size // 4
    return vmem, [at_w, at_x, count, at_bias, AT_Y, config.tile_vregs], y


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("full", [False, True], ids=["one", "full"])
def test_example_of_the_manual_computes_a_layer(preset: str, full: bool) -> None:
    config = Config.preset(preset)
    count, seed = config.result_vregs if full else 1, 9 + full
    vmem, scalars, expected = layer(config, count, seed)
    golden = GoldenCore(config)
    golden.vmem[:len(vmem)] = vmem
    golden.scalars[1:1 + len(scalars)] = scalars
    golden.load_program(assemble(example("Example"), config).bundles)
    golden.start()
    golden.run(100_000)
    assert not golden.running
    assert golden.fault is Fault.NONE
    np.testing.assert_array_equal(golden.vmem[AT_Y:AT_Y + count], expected, f"seed {seed}")


def test_example_of_the_manual_runs_on_the_core() -> None:
    config = Config.preset("tiny")
    count, seed = config.result_vregs, 9
    vmem, scalars, expected = layer(config, count, seed)
    with CoreModel(config) as core:
        core.write_vmem(0, vmem)
        core.write_scalars(scalars, 1)
        core.run_program(assemble(example("Example"), config).bundles, max_cycles=10_000)
        np.testing.assert_array_equal(core.read_vmem(AT_Y, count), expected, f"seed {seed}")


@pytest.mark.parametrize("blocks", [2, 3, 8])
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_example_of_two_buffers_doubles_blocks(preset: str, blocks: int) -> None:
    config = Config.preset(preset)
    seed = 8 + blocks
    rng = np.random.default_rng(seed)
    golden = GoldenCore(config)
    rows = 4 * config.sublanes
    block = rows * config.row_bytes
    base = 64 * config.row_bytes
    part = golden.hbm[64:64 + blocks * rows]
    part[:] = rng.standard_normal(part.shape).astype(np.float32).view(np.uint32)
    around = golden.hbm[63].copy(), golden.hbm[64 + blocks * rows].copy()
    before = part.view(np.float32).copy()
    for number in range(2):
        lies = hbm(base + number * block)
        for at, words in (
                (16 * number, descriptor(config, lies, vmem(4 * number), rows=rows,
                                         semaphore=sem[0])),
                (32 + 16 * number, descriptor(config, vmem(8 + 4 * number), lies, rows=rows,
                                              semaphore=sem[1]))):
            golden.smem[at:at + DESCRIPTOR_WORDS] = words
    golden.scalars[1], golden.scalars[3] = 2 * block, blocks
    golden.load_program(assemble(example("Example: two buffers"), config).bundles)
    golden.start()
    golden.run(10_000)
    assert not golden.running
    assert golden.fault is Fault.NONE
    np.testing.assert_array_equal(part.view(np.float32), before + before, f"seed {seed}")
    assert not golden.semaphores.any()
    np.testing.assert_array_equal(golden.hbm[[63, 64 + blocks * rows]], around)


def test_manual_has_every_space_and_field_of_a_descriptor() -> None:
    for space in DmaSpace:
        assert f"\n| {space.value} | {space.name} |" in MANUAL
    rows = re.findall(r"\n\| (\d)(?:, \d)? \| `(\w+)` \| (\d+)(?::(\d+))? \|", MANUAL)
    assert [name for _, name, _, _ in rows] == list(DESCRIPTOR)
    for word, name, high, low in rows:
        signed = DESCRIPTOR[name].signed
        words = pack_descriptor({
            name: -1 if signed else (1 << DESCRIPTOR[name].width) - 1})
        packed = sum(value << 32 * number for number, value in enumerate(words))
        assert packed >> 32 * int(word) == (2 << int(high)) - (1 << int(low or high)), name
