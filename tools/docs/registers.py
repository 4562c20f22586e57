"""Writes docs/registers.md, the map of the control slave's registers, from `hdl.chip.registers`."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping

from hdl.axi.interface import CONTROL_ADDRESS_BITS
from hdl.chip.registers import (
    CORE_PITCH,
    CORE_REGISTERS,
    GLOBAL_REGISTERS,
    MAX_CORES,
    WAIT_CYCLES,
    Access,
    Register,
)

__all__ = ["PATH", "document"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "registers.md"
"""The map's place."""

_ACCESS = {
    Access.RO: "can be read",
    Access.RW: "can be read and written",
    Access.WO: "can be written",
    Access.W1: "can be written; a 1 does something, a 0 nothing",
    Access.W1C: "can be read and written; a 1 clears its bit, a 0 does nothing",
}

_INTRODUCTION = f"""\
# Registers

What the host sees of the chip through its AXI4-Lite slave: data of 32 bits, byte addresses of
{CONTROL_ADDRESS_BITS} bits. Written by `make docs` from the table in `hdl/chip/registers.py`, from
which the hardware and the driver take the same numbers.

The registers of the chip begin at address 0, those of core *k* at
{CORE_PITCH:#x} · (*k* + 1).

## Rules

- An access that is **refused** ends with SLVERR, changes nothing (but for DMA_FAULT, which says
  why), and a read gives zero. Refused is what is not said here: an address without a register (a
  core that the chip does not have included), a read or a write of a register that cannot be read or
  written, a 1 written to a bit that belongs to no field. Such bits read as zero.
- A register is written **as a whole**. A write of some of its bytes is refused. A write without any
  byte strobe does nothing and is not refused, whatever its address. The two low bits of an address
  do not count.
- Accesses are executed one after the other. Address and data of a write may come in any order; a
  read and a write that both wait take turns. Where order matters, wait for the answer.
- Some accesses wait for a core to take them. One that waits for {WAIT_CYCLES} cycles is refused: a
  program may load from scalar memory in every cycle, or the queue of transfers be full.

"""

_RESET = """\
The column *reset* is the value after a reset of the chip; without one, a register shows the state
of something else. A reset of a core leaves all registers as they are, but for what they show of
the core.

"""


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def _bits(low: int, width: int) -> str:
    return f"{low + width - 1}:{low}" if width > 1 else str(low)


def _offset(register: Register) -> str:
    return f"0x{register.offset:03X}"


def _block(title: str, registers: Mapping[str, Register]) -> Iterator[str]:
    yield from [f"## {title}", ""]
    yield from _table(
        ["offset", "register", "access", "reset", "what it is"],
        ([f"`{_offset(register)}`", f"`{register.name}`", register.access.value,
          "" if register.reset is None else f"{register.reset:#x}" if register.reset else "0",
          register.description] for register in registers.values()))
    for register in registers.values():
        if register.fields:
            yield from [f"### `{register.name}`", ""]
            yield from _table(["bits", "field", "what it is"],
                              ([_bits(field.low, field.width), f"`{field.name}`", field.description]
                               for field in register.fields))


def document() -> str:
    """The whole page."""
    cores = ", ".join(f"{CORE_PITCH * (core + 1):#x} for core {core}" for core in range(MAX_CORES))
    lines = [
        *_table(["access", "the register"],
                ([f"{access.value}", text] for access, text in _ACCESS.items())),
        _RESET,
        *_block("The chip", GLOBAL_REGISTERS),
        *_block(f"A core: {cores}", CORE_REGISTERS),
    ]
    text = _INTRODUCTION + "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip("\n") + "\n"


def main() -> None:
    """Writes the page."""
    PATH.write_text(document(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
