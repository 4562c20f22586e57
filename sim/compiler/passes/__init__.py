"""Passes: each transforms a graph into an equivalent one.

`PASSES` lists all passes in order. The graph is verified after each pass. One environment variable
is read:

``SYSTOLITH_DUMP``
    Folder to which the graph is written as text, before the first pass and after each pass. Each
    compiled graph gets a subfolder. If the variable is not set, nothing is written.
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
from sim.compiler.passes.join_sums import join_sums
from sim.compiler.passes.share_common import share_common
from sim.compiler.passes.sink_transposes import sink_transposes
from sim.compiler.passes.split_products import split_products

__all__ = ["PASSES", "SIMPLIFICATIONS", "dump_folder", "run_passes"]

_Pass = Callable[[Graph, Config], None]


def _plain(apply: Callable[[Graph], None]) -> tuple[str, _Pass]:
    """Make an entry (name, function) of `PASSES` for ``apply``, which does not need the chip."""
    return apply.__name__, lambda graph, config: apply(graph)


SIMPLIFICATIONS: tuple[tuple[str, _Pass], ...] = (
    _plain(fold_constants), _plain(canonicalize), _plain(share_common), _plain(drop_dead),
    _plain(drop_empty))
"""Passes that remove redundant operations; they run before and after the expanding passes."""

PASSES: tuple[tuple[str, _Pass], ...] = (
    ("join_sums", join_sums),
    *SIMPLIFICATIONS,
    _plain(sink_transposes),
    _plain(split_products),
    ("split_phases", split_phases),
    ("expand_convolutions", expand_convolutions),
    _plain(expand_products),
    _plain(expand_elements),
    *SIMPLIFICATIONS,
    ("fuse", fuse),
)
"""All passes in order, as (name, function); each function changes the graph in place."""


def run_passes(graph: Graph, config: Config) -> None:
    """Run all passes.

    Parameters
    ----------
    graph : Graph
        The graph; it is changed in place.
    config : Config
        The chip.

    Raises
    ------
    ValueError
        If the graph is invalid, before the first pass or after one; the message names the pass.
    """
    dump = _Dump(graph.name)
    verify(graph)
    dump.write("graph", graph)
    for name, apply in PASSES:
        apply(graph, config)
        try:
            verify(graph)
        except ValueError as error:
            raise ValueError(f"after pass {name}: {error}") from error
        dump.write(name, graph)


def dump_folder() -> pathlib.Path | None:
    """Return the folder that ``SYSTOLITH_DUMP`` names; None if the variable is not set."""
    chosen = os.environ.get("SYSTOLITH_DUMP")
    return pathlib.Path(chosen) if chosen else None


class _Dump:
    """Writes a graph's text after each pass, if ``SYSTOLITH_DUMP`` is set."""

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
        """Write the graph's text to a file that is named after ``name``, the pass."""
        if self._folder is not None:
            path = self._folder / f"{next(self._numbers):02}-{name}.txt"
            path.write_text(to_text(graph) + "\n", encoding="utf-8")
