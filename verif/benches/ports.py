"""Access to the ports of one Amaranth signature by the names of its members."""

from collections.abc import Iterable

from cocotb.handle import HierarchyObject

from verif.benches.clocking import int_reader, pin, writer

__all__ = ["Ports"]


class Ports:
    """The ports ``{name}__{member}`` of the design.

    Inputs are driven only when they change: a write costs more than everything else in a cycle.

    Parameters
    ----------
    dut : HierarchyObject
        The design.
    name : str
        Name of the signature in the design.
    members : iterable of str
    """

    def __init__(self, dut: HierarchyObject, name: str, members: Iterable[str]) -> None:
        pins = {member: pin(dut, f"{name}__{member}") for member in members}
        self._writers = {member: writer(pin) for member, pin in pins.items()}
        self._numbers = {member: int_reader(pin) for member, pin in pins.items()}
        self._driven: dict[str, int] = {}

    def drive(self, **values: int) -> None:
        """Drives the given members; the others keep their values."""
        for member, value in values.items():
            if self._driven.get(member) != value:
                self._writers[member](value)
                self._driven[member] = value

    def zero(self) -> None:
        """Drives all members with zeros."""
        self.drive(**dict.fromkeys(self._writers, 0))

    def __getitem__(self, member: str) -> int:
        return self._numbers[member]()
