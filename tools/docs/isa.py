"""Writes docs/isa.md, the manual of the instruction set.

The text is ``isa.template.md``; tables and numbers come from `hdl.isa` and `hdl.config`.
"""

import pathlib
import re
import string

from hdl import isa
from hdl.config import PRESETS, Config
from hdl.dma.format import DESCRIPTOR, DESCRIPTOR_WORDS, DMA_SPACES, DmaSpaceInfo
from hdl.isa import Kind, Operand, Operation, Slot, Unit
from sim.asm import text as assembly
from sim.asm.naming import default, method_name
from tools.docs.markdown import bit_range, table

__all__ = ["PATH", "document", "syntax"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "isa.md"
"""Path of the manual."""

_TEMPLATE = pathlib.Path(__file__).with_name("isa.template.md")

_SLOT_TITLES = {
    (Slot.S0, Slot.S1): "Both scalar slots, `s0` and `s1`",
    (Slot.S0,): "Scalar slot `s0`: the scalar memory",
    (Slot.S1,): "Scalar slot `s1`: branches",
    (Slot.V0, Slot.V1): "Both vector slots, `v0` and `v1`",
    (Slot.V1,): "Vector slot `v1`: transcendental functions and random numbers",
    (Slot.LOAD,): "Slot `ld`: vector load",
    (Slot.STORE,): "Slot `st`: vector store",
    (Slot.PUSH,): "Slot `push`: to the array",
    (Slot.POP,): "Slot `pop`: from the array",
    (Slot.MISC,): "Slot `misc`: the cross-lane unit, semaphores, and transfers",
}
_KINDS = {
    Kind.SCALAR_OUT: "Number of a scalar register.",
    Kind.SCALAR_IN: "Number of a scalar register.",
    Kind.SCALAR_INOUT: "Number of a scalar register.",
    Kind.SOURCE: f"0 to {isa.SCALAR_REGISTERS - 1}: that scalar register. {isa.FIRST_IMMEDIATE} to "
        f"{isa.FIRST_IMMEDIATE + isa.IMMEDIATES - 1}: immediate 0 to {isa.IMMEDIATES - 1}. "
        f"{isa.INLINE_BASE + isa.INLINE_MIN} to {isa.INLINE_BASE + isa.INLINE_MAX}: the integer "
        f"(code - {isa.INLINE_BASE}), from {isa.INLINE_MIN} to {isa.INLINE_MAX}, as 32 bits. Other "
        "codes are illegal.",
    Kind.VECTOR_OUT: "Number of a vector register.",
    Kind.VECTOR_IN: "Number of a vector register.",
    Kind.VECTOR_SOURCE: f"{isa.VECTOR_FLAG} to {isa.VECTOR_FLAG + isa.VECTOR_REGISTERS - 1}: "
        f"the vector register with number (code - {isa.VECTOR_FLAG}). Below {isa.VECTOR_FLAG}: a "
        "scalar source; every element gets its 32 bits. Other codes are illegal.",
    Kind.MASK_OUT: f"Number of a mask register, 1 to {isa.MASKS - 1}; other codes are illegal.",
    Kind.MASK_IN: f"Number of a mask register, 0 to {isa.MASKS - 1}; other codes are illegal.",
    Kind.SEMAPHORE: f"Number of a semaphore, 0 to {isa.SEMAPHORES - 1}; other codes are illegal.",
    Kind.IMMEDIATE: f"Number of an immediate, 0 to {isa.IMMEDIATES - 1}; other codes are illegal.",
}
_SYNTAX = {
    Kind.SCALAR_OUT: "s*{}*", Kind.SCALAR_IN: "s*{}*", Kind.SCALAR_INOUT: "s*{}*",
    Kind.SOURCE: "*{}*", Kind.VECTOR_SOURCE: "*{}*", Kind.VECTOR_OUT: "v*{}*",
    Kind.VECTOR_IN: "v*{}*", Kind.MASK_OUT: "m*{}*", Kind.MASK_IN: "m*{}*",
    Kind.SEMAPHORE: "sem*{}*", Kind.IMMEDIATE: "*target*",
}
_LATENCY = {
    Unit.SIMPLE: str(isa.SIMPLE_LATENCY), Unit.FLOAT: str(isa.FLOAT_LATENCY),
    Unit.TRANSCENDENTAL: str(isa.TRANSCENDENTAL_LATENCY), Unit.SCALAR: "1", Unit.SEMAPHORE: "1",
    Unit.BRANCH: "1", Unit.SMEM: "2", Unit.VMEM: str(isa.LOAD_LATENCY), Unit.MXU: "rows",
    Unit.XLU: "rows", Unit.DMA: "", Unit.OTHER_CORE: "", Unit.LINKS: "",
}
_WRITTEN = (Kind.SCALAR_OUT, Kind.SCALAR_INOUT, Kind.VECTOR_OUT, Kind.MASK_OUT)


def syntax(operation: Operation) -> str:
    """Assembly syntax of an operation as Markdown, with the operands' field names in italics."""
    text = ""
    closing = ""
    for operand in operation.operands:
        word = (" " if not text else ", ") + _SYNTAX[operand.kind].format(operand.field)
        if default(operation, operand) is not None:
            word, closing = f" [{word.strip()}", closing + "]"
        text += word
    return f"`{operation.name}`{text}{closing}"


def _latency(operation: Operation) -> str:
    if operation.unit in (Unit.SMEM, Unit.VMEM) and not any(
            operand.kind in _WRITTEN for operand in operation.operands):
        return "1"
    return _LATENCY[operation.unit]


def _cell(text: str) -> str:
    """Escape ``text`` for a cell of a Markdown table."""
    return re.sub(r"([|*_~])", r"\\\1", text)


def _state() -> str:
    elements = "sublanes \N{MULTIPLICATION SIGN} lanes"
    banks = (
        ("s", isa.SCALAR_REGISTERS, "scalar registers of 32 bits; `s0` reads as 0, and writes to "
         "it have no effect"),
        ("v", isa.VECTOR_REGISTERS, f"vector registers of {elements} elements of 32 bits"),
        ("m", isa.MASKS, f"mask registers of {elements} bits; `m0` is all ones and cannot be "
         "written"),
        ("sem", isa.SEMAPHORES, "semaphores of 32 bits: `signal`, transfers, the other core and "
         "the host add to them, and `wait` subtracts from them"),
    )
    return table(["state", "description"], [
        *((f"`{name}0` … `{name}{count - 1}`", what) for name, count, what in banks),
        ("vector memory", f"`vmem[i]` is a vector, {elements} elements: **an address counts "
         "vectors**"),
        ("scalar memory", "`smem[i]` is a word of 32 bits: an address counts words"),
        ("instruction memory", "each address holds a bundle: the program counter counts bundles"),
        ("HBM", "memory that all cores share; only transfers access it; a row has `lanes` words"),
        ("array", "the active weight tile, the loaded part of the next one, results to be popped"),
        ("transposer", "a tile of lanes \N{MULTIPLICATION SIGN} lanes elements"),
    ])


def _sizes() -> str:
    measures: list[tuple[str, str]] = [
        ("lanes", "lanes"), ("sublanes", "sublanes"), ("bytes of a vector", "bytes"),
        ("vectors of vector memory", "vmem_vectors"), ("words of scalar memory", "smem_words"),
        ("bundles of instruction memory", "imem_bundles"),
        ("bytes of HBM", "hbm_bytes"), ("bytes of a row of HBM", "row_bytes"),
        ("`tile_vregs`: pushes that load a weight tile", "tile_vregs"),
        ("`result_vregs`: most vectors of results that the array holds", "result_vregs"),
    ]

    def value(config: Config, name: str) -> int:
        if name == "bytes":
            return 4 * config.lanes * config.sublanes
        number: int = getattr(config, name)
        return number

    return table(["", *(f"`{name}`" for name in PRESETS)],
                  [[title, *(value(config, name) for config in PRESETS.values())]
                   for title, name in measures])


def _layout() -> str:
    rows: list[list[object]] = []
    position = 0
    for slot, widths in isa.SLOTS.items():
        for name, width in widths.items():
            rows.append([f"`{slot}`", f"`{name}`", bit_range(position, width), width])
            position += width
    rows.append(["", "reserved, zero", bit_range(position, isa.RESERVED_BITS), isa.RESERVED_BITS])
    position += isa.RESERVED_BITS
    for number in range(isa.IMMEDIATES):
        rows.append(["", f"`imm{number}`", bit_range(position, 32), 32])
        position += 32
    return table(["slot", "field", "bits", "width"], rows)


def _operations() -> str:
    parts = []
    for slots, title in _SLOT_TITLES.items():
        parts += [f"### {title}", table(
            ["code", "operation", "latency", "meaning", "faults"],
            ([operation.op.value, syntax(operation), _latency(operation),
              _cell(operation.semantics).replace("imm[d]", "*target*"),
              ", ".join(fault.name for fault in operation.faults)]
             for operation in isa.OPERATIONS if operation.slots == slots))]
    return "\n\n".join(parts)


def _operands() -> str:
    def used(kind: Kind) -> str:
        fields: list[Operand] = [operand for operation in isa.OPERATIONS
                                 for operand in operation.operands if operand.kind is kind]
        return ", ".join(f"`{name}`" for name in sorted({operand.field for operand in fields}))

    return table(["operand", "fields", "code"],
                  [[kind.value, used(kind), _KINDS[kind]] for kind in Kind])


def _grammar() -> str:
    doc = assembly.__doc__ or ""
    return "\n".join(line.removeprefix("    ") for line in doc.splitlines()
                     if line.startswith("    "))


def _spaces() -> str:
    def sides(info: DmaSpaceInfo) -> str:
        return " and ".join(name for name, able in (
            ("source", info.source), ("destination", info.destination)) if able)

    return table(
        ["code", "space", "description", "address", "block", "allowed as"],
        [[space.value, space.name, info.meaning, info.address,
          "vector" if info.vector else "row", sides(info)]
         for space, info in DMA_SPACES.items()])


def _descriptor() -> str:
    rows: list[list[object]] = []
    position = 0
    for name, field in DESCRIPTOR.items():
        word, low = divmod(position, 32)
        words = f"{word}, {word + 1}" if field.width > 32 else str(word)
        rows.append([words, f"`{name}`", bit_range(low, field.width), _cell(field.meaning)])
        position += field.width
    return table(["word", "field", "bits", "meaning"], rows)


def _faults() -> str:
    return table(["number", "fault", "cause"], (
        [fault.value, fault.name, _cell(isa.FAULTS[fault])] for fault in isa.Fault))


def document() -> str:
    """The text of the manual, as Markdown."""
    keywords = sorted({f"`{method_name(operation)}`" for operation in isa.OPERATIONS
                       if method_name(operation) != operation.name})
    return string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        state=_state(), sizes=_sizes(), layout=_layout(), operands=_operands(),
        operations=_operations(), spaces=_spaces(), descriptor=_descriptor(), faults=_faults(),
        bundle_bits=isa.BUNDLE_BITS, bundle_words=isa.BUNDLE_WORDS,
        bundle_pitch=isa.BUNDLE_PITCH,
        slot_count=len(isa.SLOTS), immediates=isa.IMMEDIATES,
        inline_min=isa.INLINE_MIN, inline_max=isa.INLINE_MAX,
        simple_latency=isa.SIMPLE_LATENCY, float_latency=isa.FLOAT_LATENCY,
        load_latency=isa.LOAD_LATENCY, transcendental_latency=isa.TRANSCENDENTAL_LATENCY,
        array_latency=PRESETS["v2"].array_latency, descriptor_words=DESCRIPTOR_WORDS,
        grammar=_grammar().replace("\n", "\n    "), keywords=" and ".join(keywords))


def main() -> None:
    """Write the manual to `PATH`."""
    PATH.write_text(document(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
