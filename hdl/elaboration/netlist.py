"""Makes Amaranth's elaboration faster, by a third; its results are the same, bit for bit.

Amaranth describes a module as a netlist of single bits. Most of the time goes into creating and
looking up these bits, one by one, in a few small functions. `speed_up` replaces these functions by
others that do the same with fewer steps. They check what a design can make wrong, but not that
Amaranth itself is right. It also makes Python free the netlist as soon as the module is written,
and most of the design (`hdl.elaboration.references`). All of this holds for the whole process.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import amaranth
from amaranth.back import rtlil
from amaranth.hdl import _ast, _ir, _nir

from .references import weaken

__all__ = ["VERSION", "speed_up"]

VERSION = "0.5.10"
"""The version of Amaranth whose functions are known here; `speed_up` leaves others unchanged."""

_BITS = 16
"""Number of low bits of a net's number; they are the number of a bit of its cell."""
_CONSTANTS = frozenset((_nir.Net(0), _nir.Net(1)))
_SOURCES = (_nir.Operator, _nir.Part, _nir.Matches, _nir.PriorityMatch, _nir.AssignmentList,
            _nir.AsyncReadPort, _nir.IOBuffer)
"""The types of cells whose outputs depend on inputs in the same cycle."""


def _value(cls: type, nets: Any = ()) -> _nir.Value:
    """Replace `Value.__new__`, which checks the type of each net."""
    return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)


def _run(first: int, count: int) -> _nir.Value:
    """Return the value of ``count`` consecutive nets."""
    return tuple.__new__(_nir.Value, map(_nir.Net, range(first, first + count)))


def _from_const(cls: type, value: int, width: int) -> _nir.Value:
    """Replace `Value.from_const`."""
    zero, one = _nir.Net(0), _nir.Net(1)
    return tuple.__new__(cls, (one if value >> bit & 1 else zero for bit in range(width)))


def _from_cell(cls: type, cell: int, bit: int) -> _nir.Net:
    """Replace `Net.from_cell`."""
    assert 0 <= bit < 1 << _BITS
    return cls(cell << _BITS | bit)


def _add_value_cell(self: _nir.Netlist, width: int, cell: _nir.Cell) -> _nir.Value:
    """Replace `Netlist.add_value_cell`."""
    assert width <= 1 << _BITS
    return _run(self.add_cell(cell) << _BITS, width)


def _alloc_late_value(self: _nir.Netlist, signal: _ast.Signal) -> _nir.Value:
    """Replace `Netlist.alloc_late_value`."""
    width = len(signal)
    self.last_late_net -= width
    value = _run(self.last_late_net, width)
    self.late_to_signal.update(zip(value, ((signal, bit) for bit in range(width)), strict=True))
    return value


def _resolve_net(self: _nir.Netlist, net: _nir.Net) -> _nir.Net:
    """Replace `Netlist.resolve_net`."""
    while net < 0:
        net = self.connections[net]
    return net


def _resolve_value(self: _nir.Netlist, value: _nir.Value) -> _nir.Value:
    """Replace `Netlist.resolve_value`."""
    connections = self.connections
    nets = []
    for net in value:
        end = net
        while end < 0:
            end = connections[end]
        nets.append(end)
    return tuple.__new__(_nir.Value, nets)


def _ends(netlist: _nir.Netlist) -> dict[_nir.Net, _nir.Net] | None:
    """Return the end of each net's chain of connections; None if a chain has no end."""
    connections = dict(netlist.connections)
    for start, following in connections.items():
        if following < 0:
            end, length = following, 1
            while end < 0:
                end = connections[end]
                length += 1
                if length > len(connections):
                    return None
            connections[start] = end
    return connections


def _has_no_cycle(netlist: _nir.Netlist) -> bool:
    """Return whether no cell depends on itself in the same cycle, even through other bits."""
    ends = _ends(netlist)
    if ends is None:
        return False
    left: dict[int, Iterator[int]] = {}
    """Cells whose sources are being visited, outermost first, each with the sources that remain."""
    done: set[int] = set()

    def sources(cell: int) -> Iterator[int]:
        found = netlist.cells[cell]
        if isinstance(found, _nir.FlipFlop):
            nets = {found.clk, found.arst}
        elif isinstance(found, _SOURCES):
            nets = found.input_nets()
        else:
            return iter(())
        return iter({ends.get(net, net) >> _BITS for net in nets})

    for start in range(len(netlist.cells)):
        if start in done:
            continue
        left[start] = sources(start)
        while left:
            cell, remaining = next(reversed(left.items()))
            source = next(remaining, None)
            if source is None:
                done.add(cell)
                del left[cell]
            elif source in left:
                return False
            elif source not in done:
                left[source] = sources(source)
    # Later steps follow the chains again.
    netlist.connections = ends
    return True


def _output_nets(self: _nir.Instance, self_idx: int) -> set[_nir.Net]:
    """Replace `Instance.output_nets`."""
    first = self_idx << _BITS
    return {net for start, width in self.ports_o.values() for net in _run(first + start, width)}


def _emit_signal(self: _ir.NetlistEmitter, signal: _ast.Signal) -> _nir.Value:
    """Replace `NetlistEmitter.emit_signal`, which also notes the signal of each late net.

    The netlist has noted them. `_emit_netlist` lets the emitter use the same notes.
    """
    signals = self.netlist.signals
    if signal not in signals:
        signals[signal] = self.netlist.alloc_late_value(signal)
    value: _nir.Value = signals[signal]
    return value


def _emit_undriven(self: _ir.NetlistEmitter) -> None:
    """Replace `NetlistEmitter.emit_undriven`."""
    connections = self.netlist.connections
    for signal, value in self.netlist.signals.items():
        for bit, net in enumerate(value):
            if net < 0 and net not in connections:
                connections[net] = _nir.Net(signal.init >> bit & 1)


def _sigspec(self: rtlil.ModuleEmitter, *parts: Any) -> str:
    """Replace `ModuleEmitter.sigspec`, which looks each net up twice and adds the parts up."""
    value = [net for part in parts
             for net in ((part,) if isinstance(part, _nir.Net) else part)]
    places, count, end = self.nets, len(value), 0
    chunks = []
    while end < count:
        begin = end
        if value[begin] in _CONSTANTS:
            while end < count and value[end] in _CONSTANTS:
                end += 1
            bits = "".join(map(str, map(int, reversed(value[begin:end]))))
            chunks.append(f"{end - begin}'{bits}")
            continue
        wire, first = places[value[begin]]
        following = first
        while end < count and places.get(value[end]) == (wire, following):
            end += 1
            following += 1
        bits = f"{first}" if end - begin == 1 else f"{following - 1}:{first}"
        chunks.append(f"{wire.name} [{bits}]")
    return chunks[0] if len(chunks) == 1 else f"{{ {' '.join(reversed(chunks))} }}"


def _connecting(bits: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement of `NetlistEmitter.connect`, which is ``bits``."""

    def connect(self: _ir.NetlistEmitter, lhs: _nir.Value, rhs: _nir.Value, *,
                src_loc: Any) -> None:
        """Connect all bits at once, unless one of them has a driver, which is an error."""
        connections = self.netlist.connections
        if len(lhs) == len(rhs) == len(set(lhs)) and connections.keys().isdisjoint(lhs):
            connections.update(zip(lhs, rhs, strict=True))
            self.connect_src_loc.update(dict.fromkeys(lhs, src_loc))
        else:
            bits(self, lhs, rhs, src_loc=src_loc)

    return connect


def _finding_flows(follow: Callable[[_nir.Netlist], None]) -> Callable[[_nir.Netlist], None]:
    """Return a replacement of `_compute_net_flows`, which is ``follow``."""

    def compute_net_flows(netlist: _nir.Netlist) -> None:
        """Follow no net through the hierarchy if there is only one module."""
        if len(netlist.modules) > 1:
            follow(netlist)
            return
        for number, cell in enumerate(netlist.cells):
            netlist.modules[0].net_flow.update(dict.fromkeys(
                cell.output_nets(number), _nir.ModuleNetFlow.Internal))

    return compute_net_flows


def _contains(self: _ast._MappedKeyDict, key: Any) -> bool:
    """Replace `Mapping.__contains__`, which raises an exception and catches it."""
    return (None if key is None else self._map_key(key)) in self._storage


def _items(self: _ast._MappedKeyDict) -> Iterable[tuple[Any, Any]]:
    """Replace `Mapping.items`, which looks each key up."""
    return list(zip(self, self._storage.values(), strict=True))


def _values(self: _ast._MappedKeyDict) -> Iterable[Any]:
    """Replace `Mapping.values`, which looks each key up."""
    return list(self._storage.values())


def _emit_netlist(netlist: _nir.Netlist, design: _ir.Design, *,
                  all_undef_to_ff: bool = False) -> None:
    """Replace the function of the same name; see `_emit_signal` for the signals of late nets.

    Let the emitter refer to nothing afterwards.

    An emitter is part of a cycle of references, because its methods define recursive functions.
    Until the garbage collector finds the cycle, everything that the emitter refers to would stay in
    memory. Most of it is the netlist: a million objects for a core.
    """
    emitter = _ir.NetlistEmitter(netlist, design, all_undef_to_ff=all_undef_to_ff)
    emitter.late_net_to_signal = netlist.late_to_signal
    emitter.emit_fragment(design.fragment, None)
    vars(emitter).clear()


@functools.cache
def speed_up() -> bool:
    """Replace functions of Amaranth; return whether its version is the one that they are from."""
    if amaranth.__version__ != VERSION:
        return False
    weaken()
    check_bits = _nir.Netlist.check_comb_cycles
    emit_module = rtlil.ModuleEmitter.emit
    parse_format = _ast.Format.__init__

    def check_comb_cycles(self: _nir.Netlist) -> None:
        """Follow all bits, which takes long, only if cells depend on each other."""
        if not _has_no_cycle(self):
            # As in `_emit_netlist`, a cycle of references keeps the netlist that is checked.
            same = copy.copy(self)
            check_bits(same)
            vars(same).clear()

    def emit(self: rtlil.ModuleEmitter) -> None:
        """Let the emitter refer to nothing afterwards: see `_emit_netlist`."""
        emit_module(self)
        vars(self).clear()

    def init_format(self: _ast.Format, format: str, *args: Any, **kwargs: Any) -> None:
        """Parse no format that only shows a value: every signal has one."""
        if format == "{}" and len(args) == 1 and not kwargs and isinstance(args[0], _ast.Value):
            self._chunks = (args[0], ""),
        else:
            parse_format(self, format, *args, **kwargs)

    _nir.Value.__new__ = _value
    _nir.Value.from_const = classmethod(_from_const)
    _nir.Net.from_cell = classmethod(_from_cell)
    _nir.Netlist.add_value_cell = _add_value_cell
    _nir.Netlist.alloc_late_value = _alloc_late_value
    _nir.Netlist.resolve_net = _resolve_net
    _nir.Netlist.resolve_value = _resolve_value
    _nir.Netlist.check_comb_cycles = check_comb_cycles
    _nir.Instance.output_nets = _output_nets
    _ir.NetlistEmitter.emit_signal = _emit_signal
    _ir.NetlistEmitter.emit_undriven = _emit_undriven
    _ir.NetlistEmitter.connect = _connecting(_ir.NetlistEmitter.connect)
    _ir._compute_net_flows = _finding_flows(_ir._compute_net_flows)
    _ir._emit_netlist = _emit_netlist
    rtlil.ModuleEmitter.emit = emit
    rtlil.ModuleEmitter.sigspec = _sigspec
    _ast.Format.__init__ = init_format
    _ast._MappedKeyDict.__contains__ = _contains
    _ast._MappedKeyDict.items = _items
    _ast._MappedKeyDict.values = _values
    return True
