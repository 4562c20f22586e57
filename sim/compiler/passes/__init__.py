"""Passes: they transform a graph into an equal one.

`PASSES` lists all of them, in order. Between two passes the graph is verified. An environment
variable overrides a default:

``SYSTOLITH_DUMP``
    The folder to which each graph is written as text, before the first pass and after each, in a
    folder of its own. Default: none.
"""

import os
import pathlib
from collections.abc import Callable
from itertools import count

from hdl.config import Config
from sim.compiler.graph.ir import Graph
from sim.compiler.graph.text import to_text
from sim.compiler.graph.verify import verify
from sim.compiler.passes.canonicalize import canonicalize
from sim.compiler.passes.convolutions.expand_convolutions import expand_convolutions
from sim.compiler.passes.convolutions.split_phases import split_phases
from sim.compiler.passes.drop_dead import drop_dead
from sim.compiler.passes.drop_empty import drop_empty
from sim.compiler.passes.expand_elements import expand_elements
from sim.compiler.passes.expand_products import expand_products
from sim.compiler.passes.fold_constants import fold_constants
from sim.compiler.passes.fuse import fuse
from sim.compiler.passes.share_common import share_common
from sim.compiler.passes.sink_transposes import sink_transposes

__all__ = ["PASSES", "SIMPLIFICATIONS", "dump_folder", "run_passes"]

_Pass = Callable[[Graph, Config], None]


def _plain(apply: Callable[[Graph], None]) -> tuple[str, _Pass]:
    """A pass that is the same for all chips, with its name."""
    return apply.__name__, lambda graph, config: apply(graph)


SIMPLIFICATIONS: tuple[tuple[str, _Pass], ...] = (
    _plain(fold_constants), _plain(canonicalize), _plain(share_common), _plain(drop_dead),
    _plain(drop_empty))
"""Passes that remove what need not be computed: before and after others write operations anew."""

PASSES: tuple[tuple[str, _Pass], ...] = (
    *SIMPLIFICATIONS,
    _plain(sink_transposes),
    ("split_phases", split_phases),
    ("expand_convolutions", expand_convolutions),
    _plain(expand_products),
    _plain(expand_elements),
    *SIMPLIFICATIONS,
    ("fuse", fuse),
)
"""All passes by name, in order. Each changes the graph."""


def run_passes(graph: Graph, config: Config) -> None:
    """Run all passes.

    Parameters
    ----------
    graph : Graph
        The graph; it is changed.
    config : Config
        The chip.

    Raises
    ------
    ValueError
        If the graph is not valid, or a pass makes it so.
    """
    dump = _Dump(graph.name)
    verify(graph)
    dump.write("graph", graph)
    for name, apply in PASSES:
        apply(graph, config)
        try:
            verify(graph)
        except ValueError as error:
            raise ValueError(f"after {name}: {error}") from error
        dump.write(name, graph)


def dump_folder() -> pathlib.Path | None:
    """The folder that ``SYSTOLITH_DUMP`` names, or None."""
    chosen = os.environ.get("SYSTOLITH_DUMP")
    return pathlib.Path(chosen) if chosen else None


class _Dump:
    """Writes a graph's text after each pass, if ``SYSTOLITH_DUMP`` says where."""

    def __init__(self, name: str) -> None:
        self._folder: pathlib.Path | None = None
        self._numbers = count()
        if (chosen := dump_folder()) is not None:
            safe = "".join(letter if letter.isalnum() or letter in "-_." else "_"
                           for letter in name) or "graph"
            for number in count():
                folder = chosen / (f"{safe}-{number}" if number else safe)
                try:
                    folder.mkdir(parents=True)
                except FileExistsError:
                    continue
                self._folder = folder
                break

    def write(self, name: str, graph: Graph) -> None:
        """Write the graph as it is after a pass."""
        if self._folder is not None:
            path = self._folder / f"{next(self._numbers):02}-{name}.txt"
            path.write_text(to_text(graph) + "\n", encoding="utf-8")
