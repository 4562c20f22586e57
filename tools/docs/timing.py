"""Write the timing diagrams of docs/core.md, from a simulation of the core's RTL.

Each diagram shows a short program, and the core's activity in each clock cycle from its start. The
core has the configuration `tiny` and runs in Amaranth's simulator, whose waveform file gives the
values of the signals.
"""

import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.sim import Simulator

from hdl.config import Config
from hdl.core.core import Core
from hdl.core.interface import REQUEST_WORD_BITS, Space
from hdl.encoding import bundle_words
from sim.asm.text import assemble

__all__ = ["DIAGRAMS", "PATH", "Diagram", "blocks", "draw", "write"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "core.md"
_BLOCK = re.compile(r"(<!-- timing: (\w+) -->\n\n)((?: {4}.*\n|\n)+)")
"""Pattern of a diagram in the page: a comment with the diagram's name, and an indented block."""
_PERIOD = 1e-6
_WIDTH = 3
"""Width of a cycle in the diagram, in characters."""

Values = Mapping[str, int]
Row = tuple[str, Callable[[Values], str]]


@dataclass(frozen=True)
class Diagram:
    """A program and the rows of its diagram.

    Attributes
    ----------
    program : str
        The program in text form.
    rows : sequence of (str, function)
        The label of each row, and a function that returns the row's text for a cycle, given the
        values of all signals in that cycle.
    signals : mapping of int to (int, int)
        Semaphores to which the host adds: (number of the semaphore, amount) by cycle. The host
        starts the program in cycle 0.
    """

    program: str
    rows: Sequence[Row]
    signals: Mapping[int, tuple[int, int]]


def _when(*conditions: str, show: str = "", prefix: str = "") -> Callable[[Values], str]:
    """Return a row's function (`Diagram.rows`), which shows a signal under conditions.

    The row's text is empty unless all signals named in ``conditions`` are 1. Then it is "x" if
    ``show`` is empty; otherwise, ``prefix`` and the value of the signal ``show``.
    """
    def cell(values: Values) -> str:
        if not all(values[condition] for condition in conditions):
            return ""
        return f"{prefix}{values[show]}" if show else "x"
    return cell


def _handshake(port: str) -> Callable[[Values], str]:
    return _when(f"{port}__valid", f"{port}__ready")


def _written(port: str) -> Callable[[Values], str]:
    written = f"sequencer__written__{port}"
    return _when(f"{written}__valid", show=f"{written}__d", prefix="v")


_START: Row = ("start", _when("start"))
_FETCH: Row = ("fetch", _when("sequencer.imem__read", show="sequencer.imem__read_address"))
_ISSUE: Row = ("issue", _when("sequencer.control__issue", show="pc"))

DIAGRAMS: Mapping[str, Diagram] = {
    "branch": Diagram(
        "{ s0.add s1, s0, 3 } { s0.add s2, s2, 1 | s1.loop s1, 1 } { s1.halt }",
        [_START, _FETCH, _ISSUE, ("running", _when("running"))], {}),
    "load_use": Diagram(
        "{ ld.load v1, s0, 0 } { v0.fadd v2, v1, 1.0f } { st.store v2, s0, 1 } { s1.halt }",
        [_ISSUE,
         ("memory wait", _when("sequencer__waiting_memory")),
         ("vector wait", _when("sequencer__waiting_vector")),
         ("load writes", _written("load")),
         ("slot v0 writes", _written("v0"))], {}),
    "push_pop": Diagram(
        "{ push.weights v1 } { push.weights v2 } { push.rows_swap v3 } { pop.pop v4 } "
        "{ v0.move v5, v4 } { s1.halt }",
        [_ISSUE,
         ("weight row enters", _handshake("mxu__w")),
         ("activation row enters", _handshake("mxu__x")),
         ("result row leaves", _handshake("mxu__y")),
         ("pop writes", _written("chain")),
         ("vector wait", _when("sequencer__waiting_vector"))], {}),
    "semaphore": Diagram(
        "{ misc.wait sem1, 2 } { s1.halt }",
        [_ISSUE,
         ("semaphore wait", _when("sequencer__waiting_semaphore")),
         ("host adds 1 to sem1", _when("signal__valid"))], {3: (1, 1), 5: (1, 1)}),
}


def _waveform(lines: Iterator[str]) -> Iterator[dict[str, int]]:
    """Yield the values of all signals, by name, in each cycle of a waveform file (VCD).

    ``lines`` are the lines of the file. The values are those just before the clock edge that ends
    the cycle.
    """
    names: dict[str, list[str]] = {}
    scope: list[str] = []
    for line in lines:
        match line.split():
            case ["$scope", _, name, "$end"]:
                scope.append(name)
            case ["$upscope", "$end"]:
                scope.pop()
            case ["$var", _, _, code, name, *_]:
                # The first two scopes are the bench and the core.
                names.setdefault(code, []).append(".".join([*scope[2:], name]))
            case ["$enddefinitions", "$end"]:
                break
    values: dict[str, int] = {}
    changes: dict[str, int] = {}

    def take() -> Iterator[dict[str, int]]:
        if changes.get("clk") == 1 and values.get("clk") == 0:
            yield dict(values)
        values.update(changes)
        changes.clear()

    for line in lines:
        if line.startswith("#"):
            yield from take()
        elif match := re.fullmatch(r"(?:b([01]+) |([01]))(\S+)", line.strip()):
            for name in names.get(match[3], ()):
                changes[name] = int(match[1] or match[2], 2)
    yield from take()


def _simulate(diagrams: Sequence[Diagram]) -> list[list[dict[str, int]]]:
    """Simulate the programs of the diagrams; return the signals' values by program and cycle.

    The cycles are those from the host's start, cycle 0, to the last in which the program runs.
    """
    config = Config.preset("tiny")
    core = Core(config)
    simulator = Simulator(core)
    simulator.add_clock(_PERIOD)

    async def host(ctx: Any) -> None:
        ctx.set(core.request.payload.write, 1)
        ctx.set(core.request.payload.space, Space.IMEM)
        for diagram in diagrams:
            ctx.set(core.request.valid, 1)
            for number, bundle in enumerate(assemble(diagram.program, config)):
                for index, word in enumerate(bundle_words(bundle)):
                    ctx.set(core.request.payload.address, number << REQUEST_WORD_BITS | index)
                    ctx.set(core.request.payload.data, word)
                    await ctx.tick()
            ctx.set(core.request.valid, 0)
            cycle = 0
            while cycle < 2 or ctx.get(core.running):
                index, amount = diagram.signals.get(cycle, (0, 0))
                ctx.set(core.start, cycle == 0)
                ctx.set(core.signal.valid, amount != 0)
                ctx.set(core.signal.index, index)
                ctx.set(core.signal.amount, amount)
                await ctx.tick()
                cycle += 1
            await ctx.tick()

    simulator.add_testbench(host)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "core.vcd"
        with path.open("w") as file, simulator.write_vcd(file):
            simulator.run()
        with path.open() as file:
            cycles = list(_waveform(file))
    runs: list[list[dict[str, int]]] = []
    for values in cycles:
        if values["start"]:
            runs.append([])
        if values["start"] or values["running"]:
            runs[-1].append(values)
    return runs


def _text(diagram: Diagram, cycles: Sequence[Values]) -> str:
    width = max(len(label) for label, _ in diagram.rows) + 1
    bundles = diagram.program.replace("} {", "}\n{").split("\n")
    lines = [*(f"{number}  {bundle}" for number, bundle in enumerate(bundles)), ""]
    table = [("cycle", [str(number) for number in range(len(cycles))]),
             *((label, [cell(values) for values in cycles]) for label, cell in diagram.rows)]
    for label, cells in table:
        lines.append((f"{label:{width}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)).rstrip())
    return "".join(f"    {line}\n" if line else "\n" for line in lines)


def draw() -> dict[str, str]:
    """Draw all diagrams; return them by name, as indented blocks of text."""
    runs = _simulate(list(DIAGRAMS.values()))
    return {name: _text(diagram, cycles)
            for (name, diagram), cycles in zip(DIAGRAMS.items(), runs, strict=True)}


def blocks(page: str) -> dict[str, str]:
    """Find the diagrams in the text ``page``; return them by name."""
    return {name: text.rstrip("\n") + "\n" for _, name, text in _BLOCK.findall(page)}


def write(page: str, diagrams: Mapping[str, str]) -> str:
    """Return the text ``page`` with its diagrams replaced by those in ``diagrams``."""
    return _BLOCK.sub(lambda match: match[1] + diagrams[match[2]] + "\n", page)


def main() -> None:
    """Write the diagrams into docs/core.md."""
    PATH.write_text(write(PATH.read_text(encoding="utf-8"), draw()), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
