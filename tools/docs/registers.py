"""Writes docs/registers.md, the map of the control slave's registers.

The text is ``registers.template.md``; the tables come from `hdl.chip.registers`.
"""

import pathlib
import string
from collections.abc import Mapping

from hdl.axi.interface import CONTROL_ADDRESS_BITS
from hdl.chip.registers import (
    CORE_PITCH,
    CORE_REGISTERS,
    GLOBAL_REGISTERS,
    LINK_REGISTERS,
    MAX_CORES,
    WAIT_CYCLES,
    Access,
    Register,
)
from tools.docs.markdown import bit_range, table

__all__ = ["PATH", "document"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "registers.md"
"""Path of the page."""

_TEMPLATE = pathlib.Path(__file__).with_name("registers.template.md")

_ACCESS = {
    Access.RO: "read only",
    Access.RW: "read and write",
    Access.WO: "write only",
    Access.W1: "write only; a 1 has an effect, a 0 has none",
    Access.W1C: "read and write; a 1 clears its bit, a 0 has no effect",
}

def _offset(register: Register) -> str:
    return f"0x{register.offset:03X}"


def _block(title: str, registers: Mapping[str, Register]) -> str:
    """Markdown of a block of registers: a table of them, and a table of the fields of each."""
    parts = [f"## {title}", table(
        ["offset", "register", "access", "reset", "description"],
        ([f"`{_offset(register)}`", f"`{register.name}`", register.access.value,
          "" if register.reset is None else f"{register.reset:#x}" if register.reset else "0",
          register.description] for register in registers.values()))]
    for register in registers.values():
        if register.fields:
            parts += [f"### `{register.name}`", table(
                ["bits", "field", "description"],
                ([bit_range(field.low, field.width), f"`{field.name}`", field.description]
                 for field in register.fields))]
    return "\n\n".join(parts)


def document() -> str:
    """The text of the page, as Markdown."""
    cores = ", ".join(f"{CORE_PITCH * (core + 1):#x} for core {core}" for core in range(MAX_CORES))
    return string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        address_bits=CONTROL_ADDRESS_BITS, core_pitch=f"{CORE_PITCH:#x}", wait_cycles=WAIT_CYCLES,
        access=table(["access", "meaning"],
                     ([access.value, text] for access, text in _ACCESS.items())),
        blocks=_block("The chip", GLOBAL_REGISTERS) + "\n\n"
        + _block("The chip, if it has links", LINK_REGISTERS) + "\n\n"
        + _block(f"A core: {cores}", CORE_REGISTERS))


def main() -> None:
    """Write the page to `PATH`."""
    PATH.write_text(document(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
