"""Drafts: bundles under construction."""

from hdl import isa
from hdl.encoding import pack
from hdl.isa import Slot

__all__ = ["MASK32", "Draft", "ImpossibleError"]

MASK32 = 0xFFFFFFFF


class ImpossibleError(Exception):
    """An operation cannot be put into a draft: its slot or its operands are not available."""


class Draft:
    """A bundle under construction: fields by slot, immediates, and the registers it writes."""

    def __init__(self) -> None:
        self.fields: dict[Slot, dict[str, int]] = {}
        self.imm: list[int] = []
        self.written: set[tuple[str, int]] = set()

    def immediate(self, value: int) -> int | None:
        """The number, 0 to 2, of an immediate with this value; None if all have other values."""
        value &= MASK32
        if value not in self.imm:
            if len(self.imm) == isa.IMMEDIATES:
                return None
            self.imm.append(value)
        return self.imm.index(value)

    def source(self, value: int) -> int:
        """The code of a scalar source that is an immediate with this value."""
        number = self.immediate(value)
        if number is None:
            raise ImpossibleError
        return isa.FIRST_IMMEDIATE + number

    def put(self, slot: Slot, operation: int, **fields: int) -> None:
        """Puts an operation into a slot, which must be free."""
        if slot in self.fields:
            raise ImpossibleError
        self.fields[slot] = {"op": operation, **fields}

    def copy(self) -> "Draft":
        other = Draft()
        other.fields = {slot: dict(fields) for slot, fields in self.fields.items()}
        other.imm = list(self.imm)
        other.written = set(self.written)
        return other

    def bundle(self) -> int:
        return pack(self.fields, tuple(self.imm))
