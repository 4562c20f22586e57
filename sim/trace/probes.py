"""What a traced chip shows of its units: signals of the same RTL, looked at from outside.

A module without logic of its own, `Probes`, stands beside the cores in the model of a traced chip
and reads their signals by their hierarchical names. All that it shows is of one clock cycle: the
state in that cycle, and what combinational logic makes of it, before the edge that ends it.
"""

import re
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Shape
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from hdl.config import Config
from hdl.core.interface import FAULT_BITS, SEMAPHORE_BITS, WAITS, semaphore_addition
from hdl.dma.interface import transfer
from hdl.isa import BUNDLE_LAYOUT

__all__ = ["ADDERS", "Probes", "Values", "hide", "port", "read_probe", "record_layout"]

Values = npt.NDArray[np.int64]

ADDERS = ("host", "engine", "other_engine", "other_program")
"""Who adds to semaphores of a core beside its own program, in the order of `CoreNode`'s arbiter;
the others are only there with two cores."""

_WORD_BITS = 32
_WIDE = 64
"""Bits from which on a signal is data."""
_DECLARATION = re.compile(r"\s*(?:input|output|wire|reg)\b(?:\s+(?:wire|reg|signed))*"
                          r"(?:\s+\[(\d+):0\])?\s+\\?([^\s;,=]+)")
_DULL = re.compile(r".*\$|(?:.*_)?cycles(?:_lo|_hi)?$")
"""Names that Yosys made up; and counters, which would be the largest part of a waveform."""

# Of a core's node, whose path stands for the @. A payload counts only where it is valid: it is zero
# elsewhere, and so the record changes less often.
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
    return ADDERS if config.cores == 2 else ADDERS[:2]


def record_layout(config: Config) -> data.StructLayout:
    """What is shown of each core in a cycle.

    ``reset``: the core is reset. ``x_accepted``, ``w_accepted``, ``waiting_{wait}``: as of
    `hdl.core.counters.CoreCounters`. ``swap``, ``transpose``: the row that is offered to the array
    brings new weights in; is a column. ``result``: a row leaves the matrix unit. ``cross_lane``:
    the cross-lane unit works. ``valid``, ``issue``, ``pc``, ``bundle``: there is a bundle; it
    issues; its address and itself. ``fault``: of the core. ``amount``: of the bundle's operation on
    a semaphore of this core, if it is one. ``write``, ``write_index``, ``write_value``: the host
    sets a semaphore. ``grant_{adder}``, ``addition``: for each of `ADDERS`, it adds to a semaphore,
    which is done at the end of the next cycle; what is added. ``push``, ``transfer``: a transfer is
    queued; which. ``clear``: all transfers are given up. ``end``: the oldest one ends.
    ``row_in``, ``row_out``: a row has been read by the engine; is given to be written.
    """
    one = ("reset", "x_accepted", "w_accepted", *(f"waiting_{wait}" for wait in WAITS), "swap",
           "transpose", "result", "cross_lane", "valid", "issue", "write", "push", "clear", "end",
           "row_in", "row_out", *(f"grant_{adder}" for adder in _adders(config)))
    return data.StructLayout({
        **dict.fromkeys(one, 1), "fault": FAULT_BITS, "pc": 32, "amount": 32,
        "write_index": SEMAPHORE_BITS, "write_value": 32, "addition": semaphore_addition(),
        "bundle": BUNDLE_LAYOUT, "transfer": transfer(config)})


def port(core: int) -> str:
    """The model's output that shows a core."""
    return f"trace_{core}"


class Probes(wiring.Component):
    """Shows the cores of the chip that it stands in.

    Parameters
    ----------
    config : Config
        Of the chip.
    top : str
        Name of the chip's module.

    Attributes
    ----------
    trace_{core} : Out(record_layout)
        For each core.
    """

    combinational = True
    module = "probes"

    def __init__(self, config: Config, top: str) -> None:
        self._config = config
        self._top = top
        self._layout = record_layout(config)
        super().__init__({port(core): Out(self._layout.size) for core in range(config.cores)})

    def verilog(self) -> str:
        """The module's text."""
        ports, body = [], []
        for core in range(self._config.cores):
            ports.append(f"output [{self._layout.size - 1}:0] {port(core)}")
            parts = self._expressions()
            for name, field in self._layout:
                width = Shape.cast(field.shape).width
                text = parts[name].replace("@", f"{self._top}.node_{core}").format(f"{width}'d0")
                body += [f"  wire [{width - 1}:0] {name}_{core} = {text};",
                         f"  assign {port(core)}[{field.offset} +: {width}] = {name}_{core};"]
        return "\n".join([f"module {self.module} (", *(f"  {text}," for text in ports[:-1]),
                          f"  {ports[-1]}", ");", *body, "endmodule", ""])

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
    """A field of many records.

    Parameters
    ----------
    layout : StructLayout
        Of the records.
    words : array of uint32, shape (records, words)
        The records, the lowest word first.
    path : str
        The field's name, and so on inwards. It has at most 32 bits and no sign.

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
    """Statements of a Verilator configuration file that leave data out of waveforms.

    Parameters
    ----------
    verilog : mapping of str to str
        The model's sources by module name.
    whole : collection of str
        Modules of which nothing is to be shown. Of the others, signals of 64 bits and more are left
        out, those without a name of their own, and counters of cycles.
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
