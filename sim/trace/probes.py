"""Probes: signals of a traced chip, observed from outside the units.

The model of a traced chip contains a module without logic, `Probes`, which reads signals of the
cores by their hierarchical names. So the RTL of a traced chip is unchanged. All values of a record
belong to one clock cycle: the contents of registers, and settled combinational logic.
"""

import re
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Shape
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from hdl.config import Config
from hdl.core.interface import SEMAPHORE_BITS, WAITS, fault_bits, semaphore_addition
from hdl.dma.interface import transfer
from hdl.isa import BUNDLE_LAYOUT
from hdl.link.format import Direction, flit_layout
from hdl.link.packet import link_config

__all__ = ["ADDERS", "LINKS_PORT", "Probes", "Values", "hide", "link_inputs",
           "link_record_layout", "port", "read_probe", "record_layout"]

Values = npt.NDArray[np.int64]

_LINK_ADDERS = ("arrival", "egress", "other_egress")
ADDERS = ("host", "engine", "other_engine", "other_program", *_LINK_ADDERS)
"""Sources of additions to a core's semaphores besides its own program: the host, and the core's DMA
engine. On a chip with two cores, also the engine and the program of the other core. On a chip with
links, also packets, and remote transfers of this core and of the other one. They are in the order
of `CoreNode`'s arbiter."""

LINKS_PORT = "trace_links"
"""Name of the output of `Probes` with the record of the links."""

_WORD_BITS = 32
_WIDE = 64
"""Signals of at least this width, in bits, are left out of waveforms, because they carry data."""
_DECLARATION = re.compile(r"\s*(?:input|output|wire|reg)\b(?:\s+(?:wire|reg|signed))*"
                          r"(?:\s+\[(\d+):0\])?\s+\\?([^\s;,=]+)")
_DULL = re.compile(r".*\$|(?:.*_)?cycles(?:_lo|_hi)?$")
"""Pattern of the names of signals that waveforms leave out: those that Yosys generated, and cycle
counters, whose changes would fill most of a file."""

# Verilog expressions by field; @ is replaced by the path of a core's node. A field that holds a
# payload is zero while the payload is not valid, so that records change less often.
_SEQUENCER, _ENGINE = "@.core.sequencer", "@.engine"
_EXPRESSIONS = {
    "reset": "@.core.rst",
    "x_accepted": "@.core.counters.x_accepted",
    "w_accepted": "@.core.counters.w_accepted",
    **{f"waiting_{wait}": f"@.core.counters.waiting_{wait}" for wait in WAITS},
    "swap": "@.core.feeder_x.row_flag & @.core.feeder_x.row_first",
    "transpose": "@.core.feeder_w.row_flag",
    "result": "@.core.mxu.y__valid & @.core.mxu.y__ready",
    "cross_lane": "@.core.xlu.busy",
    "valid": f"{_SEQUENCER}.control.valid",
    "issue": f"{_SEQUENCER}.issue",
    "fault": f"{_SEQUENCER}.fault",
    "amount": f"{_SEQUENCER}.semaphores.is_wait | {_SEQUENCER}.semaphores.is_signal ? "
              f"{_SEQUENCER}.semaphores.amount : 32'd0",
    "write": f"{_SEQUENCER}.semaphores.write",
    "write_index": f"{_SEQUENCER}.semaphores.write ? {_SEQUENCER}.semaphores.write_index : 4'd0",
    "write_value": f"{_SEQUENCER}.semaphores.write ? {_SEQUENCER}.semaphores.write_value : 32'd0",
    "push": f"{_ENGINE}.queue.push",
    "clear": f"{_ENGINE}.queue.clear",
    "end": f"{_ENGINE}.queue.completion_take",
    "row_in": f"{_ENGINE}.buffer.input__valid & {_ENGINE}.buffer.input__ready",
    "row_out": f"{_ENGINE}.buffer.output__valid & {_ENGINE}.buffer.output__ready",
    "pc": f"{_SEQUENCER}.pc",
    "bundle": f"{_SEQUENCER}.control.valid ? {_SEQUENCER}.imem.bundle : {{0}}",
    "transfer": f"{_ENGINE}.queue.push ? {_ENGINE}.queue.transfer : {{0}}",
}


def _adders(config: Config) -> tuple[str, ...]:
    local = ADDERS[:4] if config.cores == 2 else ADDERS[:2]
    return (*local, *(_LINK_ADDERS[:1 + config.cores] if config.link_bytes else ()))


def record_layout(config: Config) -> data.StructLayout:
    """The layout of a record: the fields that each core shows in a cycle.

    ``reset``
        The core is in reset.
    ``x_accepted``, ``w_accepted``
        The array accepts an activation row; the array accepts a weight row.
    ``waiting_{wait}``
        The bundle waits for the reason ``wait``, one of `hdl.core.interface.WAITS`.
    ``swap``
        The activation row offered to the array swaps the weights.
    ``transpose``
        The weight row offered to the array is a column of the weight tile.
    ``result``
        A result row leaves the matrix unit.
    ``cross_lane``
        The cross-lane unit is busy.
    ``valid``, ``issue``
        A bundle is present; this bundle issues.
    ``pc``, ``bundle``
        Address and encoding of this bundle.
    ``fault``
        The core's fault (`hdl.isa.Fault`).
    ``amount``
        Amount of the bundle's operation on a semaphore of this core, or 0.
    ``write``, ``write_index``, ``write_value``
        The host writes a semaphore; number and new value of this semaphore.
    ``grant_{adder}``
        ``adder``, one of `ADDERS`, adds to a semaphore at the end of the next cycle.
    ``addition``
        Number of this semaphore, and the amount that is added.
    ``push``, ``transfer``
        A transfer is queued; the fields of its descriptor that a trace shows.
    ``clear``, ``end``
        All transfers are dropped; the oldest transfer ends.
    ``row_in``, ``row_out``
        The DMA engine has read a row; it hands over a row to be written.
    """
    one = ("reset", "x_accepted", "w_accepted", *(f"waiting_{wait}" for wait in WAITS), "swap",
           "transpose", "result", "cross_lane", "valid", "issue", "write", "push", "clear", "end",
           "row_in", "row_out", *(f"grant_{adder}" for adder in _adders(config)))
    return data.StructLayout({
        **dict.fromkeys(one, 1), "fault": fault_bits(config), "pc": 32, "amount": 32,
        "write_index": SEMAPHORE_BITS, "write_value": 32, "addition": semaphore_addition(),
        "bundle": BUNDLE_LAYOUT, "transfer": transfer(config)})


def link_inputs(way: Direction) -> list[tuple[Direction, int] | None]:
    """Return the sources of packets that may leave by a link, in the order of the router's inputs.

    A source is the direction and the virtual channel of packets that arrived from other chips, or
    None for the packets of this chip. ``way`` is the direction of the link by which they leave.
    """
    return [*((side, channel) for side in Direction
              if side == way.opposite or (side.is_x and not way.is_x) for channel in range(2)),
            None]


def link_record_layout() -> data.StructLayout:
    """The layout of the record of a chip's links.

    Fields for each `Direction`, whose number ends the name:

    ``inject``, ``inject_tail``, ``inject_core``
        A flit of this chip enters the router; it is the last one of its packet; number of the core
        that sends it.
    ``leave_tail``, ``leave_channel``, ``leave_input``
        The last flit of a packet leaves by this link, on this virtual channel; a bit for each of
        `link_inputs`, set for the one from which it comes.
    ``eject``, ``eject_tail``, ``eject_channel``
        A flit that arrived by this link leaves the router for this chip; it is the last one of its
        packet; it arrived on this virtual channel.
    """
    fields: dict[str, int] = {}
    for way in Direction:
        fields |= dict.fromkeys((f"{name}_{way}" for name in (
            "inject", "inject_tail", "inject_core", "leave_tail", "leave_channel", "eject",
            "eject_tail", "eject_channel")), 1)
        fields[f"leave_input_{way}"] = len(link_inputs(way))
    return data.StructLayout(fields)


def port(core: int) -> str:
    """Name of the output of `Probes` with the record of core number ``core``."""
    return f"trace_{core}"


class Probes(wiring.Component):
    """A component whose outputs show signals inside a chip's cores and links.

    Parameters
    ----------
    config : Config
        Parameters of the chip.
    top : str
        Name of the chip's module.

    Attributes
    ----------
    trace_{core} : Out(record_layout)
        The record of each core in this cycle.
    trace_links : Out(link_record_layout)
        The record of the links in this cycle; present only if the chip has links.
    """

    combinational = True
    module = "probes"

    def __init__(self, config: Config, top: str) -> None:
        self._config = config
        self._top = top
        self._layout = record_layout(config)
        super().__init__({port(core): Out(self._layout.size) for core in range(config.cores)}
                         | ({LINKS_PORT: Out(link_record_layout().size)}
                            if config.link_bytes else {}))

    def verilog(self) -> str:
        """Verilog text of the module."""
        ports, body = [], []
        records = [(port(core), f"node_{core}", self._layout, self._expressions())
                   for core in range(self._config.cores)]
        if self._config.link_bytes:
            records.append((LINKS_PORT, "links", link_record_layout(), self._link_expressions()))
        for shown, unit, layout, parts in records:
            ports.append(f"output [{layout.size - 1}:0] {shown}")
            for name, field in layout:
                width = Shape.cast(field.shape).width
                text = parts[name].replace("@", f"{self._top}.{unit}").format(f"{width}'d0")
                body += [f"  wire [{width - 1}:0] {shown}_{name} = {text};",
                         f"  assign {shown}[{field.offset} +: {width}] = {shown}_{name};"]
        return "\n".join([f"module {self.module} (", *(f"  {text}," for text in ports[:-1]),
                          f"  {ports[-1]}", ");", *body, "endmodule", ""])

    def _link_expressions(self) -> dict[str, str]:
        tail = flit_layout(link_config(self._config))["tail"].offset
        parts: dict[str, str] = {}
        for way in Direction:
            inject, leave = f"@.fabric.inject__{way}__", f"@.fabric.router.leave_{way}."
            eject = f"@.fabric.eject__{way}__"
            enters, ends = f"({inject}valid & {inject}ready)", f"({eject}valid & {eject}ready)"
            leaves = f"({leave}send & {leave}flit[{tail}])"
            parts |= {
                f"inject_{way}": enters,
                f"inject_tail_{way}": f"{enters} & {inject}payload[{tail}]",
                f"inject_core_{way}": (f"{enters} & @.inject_{way}.choice_0[1]"
                                       if self._config.cores == 2 else "1'd0"),
                f"leave_tail_{way}": leaves,
                f"leave_channel_{way}": f"{leaves} & {leave}channel",
                f"leave_input_{way}": f"!{leaves} ? {{0}} : {leave}channel ? {leave}choice_1 : "
                                      f"{leave}choice_0",
                f"eject_{way}": ends,
                f"eject_tail_{way}": f"{ends} & {eject}payload[{tail}]",
                f"eject_channel_{way}": f"{ends} & @.fabric.router.eject_{way}.choice_0[1]"}
        return parts

    def _expressions(self) -> dict[str, str]:
        grants, offers = {}, []
        for number, adder in enumerate(_adders(self._config)):
            source = f"@.signals.source__{number}__"
            grants[f"grant_{adder}"] = f"{source}valid & {source}ready"
            offers.append(f"({source}valid & {source}ready ? {source}payload : {{0}})")
        width = semaphore_addition().size
        addition = " | ".join(offers).format(f"{width}'d0")
        return {**_EXPRESSIONS, **grants, "addition": addition}


def read_probe(layout: data.StructLayout, words: npt.NDArray[np.uint32], *path: str) -> Values:
    """Extracts a field of many records.

    Parameters
    ----------
    layout : StructLayout
        Layout of the records.
    words : array of uint32, shape (records, words)
        The records, the lowest word first.
    path : str
        Name of the field, then of the field within it, and so on. The value must be unsigned and
        have at most 32 bits.

    Returns
    -------
    array of int64, shape (records,)
    """
    offset, shape = 0, layout
    for name in path:
        field = shape[name]
        offset, shape = offset + field.offset, field.shape
    width = Shape.cast(shape).width
    assert width <= _WORD_BITS
    first, shift = divmod(offset, _WORD_BITS)
    value = words[:, first].astype(np.int64)
    if shift + width > _WORD_BITS:
        value |= words[:, first + 1].astype(np.int64) << _WORD_BITS
    return value >> shift & (1 << width) - 1


def hide(verilog: Mapping[str, str], whole: Collection[str]) -> str:
    """Statements of a Verilator configuration file that keep some signals out of waveforms.

    Parameters
    ----------
    verilog : mapping of str to str
        The model's sources by module name.
    whole : collection of str
        Modules to leave out entirely. Of all other modules, signals of 64 bits and more, signals
        with names from Yosys, and cycle counters are left out.
    """
    statements = []
    for module, text in verilog.items():
        file = f'tracing_off -file "{module}.v"'
        if module in whole:
            statements.append(file)
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = _DECLARATION.match(line)
            if found and (int(found[1] or 0) >= _WIDE - 1 or _DULL.match(found[2])):
                statements.append(f"{file} -lines {number}")
    return "".join(f"{statement}\n" for statement in statements)
