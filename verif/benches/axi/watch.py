"""Connects an `AxiChecker` to a port of a design."""

from collections.abc import Callable, Iterable, Mapping

from cocotb.handle import HierarchyObject

from verif.benches.clocking import ClockDomain, pin, reader
from verif.models.axi import AxiChecker

__all__ = ["AxiWatch", "check_watched"]

_VALUES = {"0": 0, "1": 1}
"""Values of one bit; others are unknown."""


class _Cycle(dict[str, int | None]):
    """The signals at one edge of the clock; each is read only when it is used, to save time.

    ``clear`` prepares this object for the next edge.
    """

    def __init__(self, readers: Mapping[str, Callable[[], str]]) -> None:
        super().__init__()
        self._readers = readers

    def __missing__(self, name: str) -> int | None:
        try:
            value = int(self._readers[name](), 2)
        except ValueError:  # of bits that are neither 0 nor 1
            self[name] = None
            return None
        self[name] = value
        return value


class AxiWatch:
    """Checks a port in every cycle, from the construction of this object on.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The design.
    prefix : str
        First part of the names of the port's signals.
    data_bytes, max_beats : int
        As for `AxiChecker`.

    Attributes
    ----------
    prefix : str
    checker : AxiChecker
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, prefix: str, data_bytes: int,
                 max_beats: int) -> None:
        self.checker = AxiChecker(prefix, data_bytes, max_beats)
        names = [name for channel, payload in self.checker.signals.items()
                 for name in (f"{channel}valid", f"{channel}ready", *payload)]
        readers = {name: reader(pin(dut, f"{prefix}_{name}")) for name in names}
        self._valids = [f"{channel}valid" for channel in self.checker.signals]
        self._read_valids = [readers[name] for name in self._valids]
        self._none = ["0"] * len(self._valids)
        self._pins = _Cycle(readers)
        self._domain = domain
        self.prefix = prefix
        domain.at_each_edge(self._check)

    def finish(self) -> None:
        """Checks that the port is idle and that every channel has been used.

        Raises
        ------
        AssertionError
            If an AXI transaction is under way, or a channel never carried anything.
        """
        self.checker.finish()
        assert all(self.checker.transfers.values()), f"{self.prefix}: {self.checker.transfers}"

    def _check(self) -> None:
        valids = [read() for read in self._read_valids]
        resetting = self._domain.resetting
        # Most ports are idle in most cycles.
        if valids == self._none and not resetting and self.checker.idle_cycle():
            return
        pins = self._pins
        pins.clear()
        for name, value in zip(self._valids, valids, strict=True):
            pins[name] = _VALUES.get(value)
        self.checker.cycle(pins, resetting=resetting)


def check_watched(dut: HierarchyObject, watches: Iterable[AxiWatch]) -> None:
    """Checks that the design has AXI ports, and that each of them is watched.

    Raises
    ------
    AssertionError
        If there is no AXI port, or one without a watch.
    """
    end = "_arvalid"
    ports = {handle._name.removesuffix(end) for handle in dut if handle._name.endswith(end)}
    watched = {watch.prefix for watch in watches}
    assert ports, "no AXI port was found"
    assert ports == watched, f"the AXI ports are {sorted(ports)}, watched are {sorted(watched)}"
