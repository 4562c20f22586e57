"""Tiles: components that are exported once as a Verilog module and instantiated many times.

Amaranth writes one module per elaborated component. A `VerilogLibrary`, passed as the platform of
an elaboration, turns each use of a tile into an ``Instance`` of a module that it writes once.
A `TileGrid` wires equal tiles into a rectangle according to a list of links. The tile-kernel
compiler reads the same list, so the structure is defined in one place.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from amaranth import ClockSignal, Instance, Module, ResetInserter, ResetSignal, Signal
from amaranth.back import rtlil
from amaranth.hdl import Shape, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from . import yosys
from .checks import instance, integer
from .elaboration.netlist import speed_up
from .target import Target

__all__ = ["Chain", "Each", "Link", "ModuleInterface", "Shared", "TileGrid", "VerilogLibrary",
           "instantiate", "port_widths"]


@dataclass(frozen=True)
class Chain:
    """A link from each tile's output to the input of the next tile to the east or to the south.

    Attributes
    ----------
    source : str
        Output port of each tile.
    sink : str or None
        Input port of the neighbour, which ``source`` drives. None: only ``last`` is connected, and
        ``first`` must be None.
    toward : "east" or "south"
        Direction of the neighbour.
    first : str or None
        Grid input that feeds the first tile of each row (east; one value per row) or column (south;
        one value per column). The value of row or column 0 is in the lowest bits. None: constant
        zero.
    last : str or None
        Grid output that the ``source`` ports of the last tiles drive, packed like ``first``.
        None: those ports are left open.

    Raises
    ------
    ValueError
        If ``toward`` is neither "east" nor "south".
    """

    source: str
    sink: str | None
    toward: Literal["east", "south"]
    first: str | None = None
    last: str | None = None

    def __post_init__(self) -> None:
        if self.toward not in ("east", "south"):
            raise ValueError(f"toward must be 'east' or 'south', not {self.toward!r}")


@dataclass(frozen=True)
class Each:
    """A link from a port of every tile to the tile's bits of a grid port of the same name.

    The bits of the tiles are in row-major order; those of the first tile are the lowest.
    """

    port: str


@dataclass(frozen=True)
class Shared:
    """A link from a grid input to the input of the same name of every tile."""

    port: str


Link = Chain | Each | Shared


def port_widths(component: wiring.Component, direction: wiring.Flow) -> dict[str, int]:
    """Return the names and widths in bits of the component's ports in ``direction``, In or Out.

    A member of an interface port is named ``{port}__{member}``, as in Amaranth's Verilog.
    """
    return {
        "__".join(str(part) for part in path): Shape.cast(member.shape).width
        for path, member, _ in component.signature.flatten(component)
        if member.flow == direction
    }


def _as_bundle(component: wiring.Component) -> wiring.Component:
    """Mark ``component`` as used, and return it; it serves only as a set of port signals.

    Without the mark, Amaranth would warn that the component was never elaborated.
    """
    component._MustUse__used = True
    return component


def _combinational(component: wiring.Component) -> bool:
    """Return whether the component declares, by ``combinational``, that it has no clock."""
    return getattr(component, "combinational", False)


@dataclass(frozen=True)
class ModuleInterface:
    """Ports and children of a Verilog module.

    Attributes
    ----------
    inputs, outputs : dict of str to int
        Widths of the module's ports in bits, by port name.
    instances : dict of str to int
        For each module that it instantiates directly, by name: the number of instances.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]
    instances: dict[str, int]


class VerilogLibrary:
    """Collects the modules of a design during elaboration, and writes each of them once.

    It serves as the ``platform`` of the elaboration. With it, `instantiate` adds an instance of the
    child's Verilog module. With any other platform, `instantiate` adds the child itself.

    Parameters
    ----------
    target : Target
        The technology for which the modules are written.
    """

    def __init__(self, target: Target = Target.GENERIC) -> None:
        instance("target", target, Target)
        self._target = target
        self._pending: dict[str, Callable[[], wiring.Component]] = {}
        self._written: dict[str, str] = {}
        self._modules: dict[str, ModuleInterface] = {}
        self._children: Counter[str] = Counter()

    def instance(self, name: str, make: Callable[[], wiring.Component],
                 component: wiring.Component, reset: Signal | None = None,
                 clock: Signal | None = None) -> Instance:
        """Return an instance of module ``name``, wired to the port signals of ``component``.

        ``make`` builds the module's component when the module is written. The common reset and
        ``reset`` both reset the instance. Its clock is ``clock`` or, if this is None, the common
        one.
        """
        if name not in self._written:
            self._pending.setdefault(name, make)
        self._children[name] += 1
        ports = {} if _combinational(component) else {
            "i_clk": ClockSignal() if clock is None else clock,
            "i_rst": ResetSignal() if reset is None else ResetSignal() | reset}
        for path, member, value in component.signature.flatten(component):
            side = "i" if member.flow == In else "o"
            ports[f"{side}_{'__'.join(str(part) for part in path)}"] = value
        return Instance(name, **ports)

    def write(self, name: str, make: Callable[[], wiring.Component], *,
              leave_out: Collection[str] = ()) -> dict[str, str]:
        """Write the component ``make()`` as module ``name``, and all modules that it contains.

        Parameters
        ----------
        name : str
            Name of the module.
        make : callable returning a Component
            Builds the component.
        leave_out : collection of str
            Modules to omit, because they are defined elsewhere.

        Returns
        -------
        dict of str to str
            Verilog of each module written by this library so far, by module name.
        """
        speed_up()
        described: dict[str, str] = {}
        self._pending[name] = make
        while self._pending:
            name, make = self._pending.popitem()
            if name in leave_out:
                continue
            component = self._variant(make())
            clocked = {} if _combinational(component) else {"clk": 1, "rst": 1}
            self._children = Counter()
            if hasattr(component, "verilog"):
                self._written[name] = _as_bundle(component).verilog()
            else:
                self._written[name] = ""  # Yosys starts slowly: one run writes all of them
                described[name] = rtlil.convert(component, name=name, platform=self, emit_src=False)
            self._modules[name] = ModuleInterface(
                clocked | port_widths(component, In), port_widths(component, Out),
                dict(sorted(self._children.items())))
        self._written |= yosys.write_verilog(described)
        return dict(sorted(self._written.items()))

    def _variant(self, component: wiring.Component) -> wiring.Component:
        """Return the variant of ``component`` for the target, or ``component`` if it has none."""
        find = getattr(component, "variant", None)
        variant: wiring.Component | None = find(self._target) if find else None
        if variant is None:
            return component
        _as_bundle(component)
        return variant

    @property
    def modules(self) -> dict[str, ModuleInterface]:
        """Interfaces of the modules written so far, by module name."""
        return dict(sorted(self._modules.items()))


def instantiate(m: Module, platform: object, name: str, module: str,
                make: Callable[[], wiring.Component], *,
                reset: Signal | None = None, clock: Signal | None = None) -> wiring.Component:
    """Add the component ``make()`` to ``m`` as submodule ``name``, and return it for wiring.

    The names of the component's port signals begin with ``name``. A component whose attribute
    ``combinational`` is true gets no clock and no reset. A component with a method ``verilog``
    writes its own module. The signal ``reset`` resets the component, in addition to the common
    reset. The signal ``clock``, which requires a `VerilogLibrary`, replaces the common clock.

    If ``platform`` is a `VerilogLibrary`, the submodule is an instance of the Verilog module
    ``module``. That module is written once for all its instances, so components with the same
    module name must be equal. Otherwise (the Python simulator) the component itself is elaborated.

    Raises
    ------
    ValueError
        If ``clock`` is given without a `VerilogLibrary`.
    """
    if clock is not None and not isinstance(platform, VerilogLibrary):
        raise ValueError(f"clock must be None without a VerilogLibrary, not {clock!r}")
    component = make()
    for path, _, signal in component.signature.flatten(component):
        signal.name = "__".join([name, *(str(part) for part in path)])
    if isinstance(platform, VerilogLibrary):
        m.submodules[name] = platform.instance(module, make, _as_bundle(component), reset, clock)
    elif reset is not None:
        m.submodules[name] = ResetInserter(reset)(component)
    else:
        m.submodules[name] = component
    return component


class TileGrid(wiring.Component):
    """A rectangle of equal tiles, wired by links.

    The links define the grid's ports. A tile must have a clock and a reset, and every output of it
    must be a register.

    Parameters
    ----------
    module : str
        Name of the grid's Verilog module. A grid of several rows instantiates ``{module}_row``
        once for each row.
    tile_module : str
        Name of the tile's Verilog module.
    make_tile : callable returning a Component
        Builds one tile.
    rows, cols : int
        Size of the rectangle.
    links : sequence of Link
        Connections of the tile's ports. Each input occurs exactly once: as the sink of a `Chain`,
        in an `Each` or in a `Shared`. An output may occur as the source of a `Chain` or in an
        `Each`. Source and sink of a `Chain` have the same width.

    Raises
    ------
    TypeError
        If ``rows`` or ``cols`` is not an integer.
    ValueError
        If ``rows`` or ``cols`` is less than 1, or the links break a rule above.
    """

    def __init__(self, module: str, tile_module: str,
                 make_tile: Callable[[], wiring.Component], rows: int, cols: int,
                 links: Sequence[Link]) -> None:
        rows = integer("rows", rows, 1)
        cols = integer("cols", cols, 1)
        # A grid that is never elaborated can still describe the structure.
        _as_bundle(self)
        self.module = module
        self.tile_module = tile_module
        self.make_tile = make_tile
        self.rows = rows
        self.cols = cols
        self.links = tuple(links)
        tile = _as_bundle(make_tile())
        self.tile_inputs = port_widths(tile, In)
        self.tile_outputs = port_widths(tile, Out)
        self._check_links()
        super().__init__({name: (Out if out else In)(width)
                          for name, width, out in self._grid_ports()})

    def _check_links(self) -> None:
        driven = [link.sink if isinstance(link, Chain) else link.port for link in self.links]
        for name in self.tile_inputs:
            if driven.count(name) != 1:
                raise ValueError(f"tile input {name!r} must be linked once, not "
                                 f"{driven.count(name)} times")
        for link in self.links:
            if isinstance(link, Chain):
                known = link.source in self.tile_outputs and (
                    link.first is None if link.sink is None else link.sink in self.tile_inputs)
            elif isinstance(link, Shared):
                known = link.port in self.tile_inputs
            else:
                known = link.port in self.tile_inputs or link.port in self.tile_outputs
            if not known:
                raise ValueError(f"link must name ports of the tile, not {link!r}")
            if isinstance(link, Chain) and link.sink is not None:
                widths = self.tile_outputs[link.source], self.tile_inputs[link.sink]
                if widths[0] != widths[1]:
                    raise ValueError("chain must join ports of the same width, not "
                                     f"{widths[0]} and {widths[1]} bits: {link!r}")

    def _grid_ports(self) -> Iterator[tuple[str, int, bool]]:
        for link in self.links:
            if isinstance(link, Shared):
                yield link.port, self.tile_inputs[link.port], False
            elif isinstance(link, Each):
                count = self.rows * self.cols
                out = link.port in self.tile_outputs
                width = (self.tile_outputs if out else self.tile_inputs)[link.port]
                yield link.port, count * width, out
            else:
                count = self.rows if link.toward == "east" else self.cols
                width = self.tile_outputs[link.source]
                if link.first is not None:
                    yield link.first, count * width, False
                if link.last is not None:
                    yield link.last, count * width, True

    @property
    def row_module(self) -> str:
        """Name of the Verilog module of one row."""
        return f"{self.module}_row"

    def row(self) -> "TileGrid":
        """Return one row of the grid, as a grid with `Each` links instead of southward chains."""
        links: list[Link] = []
        for link in self.links:
            if isinstance(link, Chain) and link.toward == "south":
                links += [Each(name) for name in (link.sink, link.source) if name is not None]
            else:
                links.append(link)
        return TileGrid(self.row_module, self.tile_module, self.make_tile, 1, self.cols, links)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self.rows == 1:
            tiles = [instantiate(m, platform, f"tile_{c}", self.tile_module, self.make_tile)
                     for c in range(self.cols)]
            self._wire(m, tiles, 1, self.cols, self.links)
        else:
            tiles = [instantiate(m, platform, f"row_{r}", self.row_module, self.row)
                     for r in range(self.rows)]
            # Eastward chains are wired within the rows; at this level only their ends are ports.
            links: list[Link] = [
                link for link in self.links
                if isinstance(link, Shared) or (isinstance(link, Chain) and link.toward == "south")]
            for link in self.links:
                if isinstance(link, Each):
                    links.append(link)
                elif isinstance(link, Chain) and link.toward == "east":
                    links += [Each(name) for name in (link.first, link.last) if name is not None]
            self._wire(m, tiles, self.rows, 1, links)
        return m

    def _wire(self, m: Module, tiles: list[wiring.Component], rows: int, cols: int,
              links: Sequence[Link]) -> None:
        def slice_of(port: Signal, index: int, width: int) -> Value:
            return port[index * width:(index + 1) * width]

        for link in links:
            if isinstance(link, Shared):
                for tile in tiles:
                    m.d.comb += getattr(tile, link.port).eq(getattr(self, link.port))
            elif isinstance(link, Each):
                for index, tile in enumerate(tiles):
                    own = getattr(tile, link.port)
                    part = slice_of(getattr(self, link.port), index, len(own))
                    if tile.signature.members[link.port].flow == Out:
                        m.d.comb += part.eq(own)
                    else:
                        m.d.comb += own.eq(part)
            else:
                step = cols if link.toward == "south" else 1
                for index, tile in enumerate(tiles):
                    row, col = divmod(index, cols)
                    position, across = (row, col) if link.toward == "south" else (col, row)
                    length = rows if link.toward == "south" else cols
                    source = getattr(tile, link.source)
                    width = len(source)
                    if link.sink is not None:
                        sink = getattr(tile, link.sink)
                        if position > 0:
                            m.d.comb += sink.eq(getattr(tiles[index - step], link.source))
                        elif link.first is not None:
                            m.d.comb += sink.eq(slice_of(getattr(self, link.first), across, width))
                    if position == length - 1 and link.last is not None:
                        m.d.comb += slice_of(getattr(self, link.last), across, width).eq(source)
