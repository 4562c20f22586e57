"""Refuses programs for which no kernels can be written."""

from hdl.config import Config
from sim.compiler.graph.ir import Graph
from sim.compiler.kernels.lowering import refusal
from sim.compiler.program.launch.kernel import load_rules
from sim.compiler.program.tilings import CONTROL, HELD
from sim.errors import Unsupported, UnsupportedError

__all__ = ["check", "without_kernel"]

_BETWEEN = frozenset({"by_device", "exchange"})
"""Kinds of programs for two devices, which have no kernel."""


def check(graph: Graph, config: Config) -> None:
    """Refuse operations without a kernel, after all passes, and chips that kernels do not fit.

    Raises
    ------
    UnsupportedError
        If there are any: all of them, with the user's lines.
    """
    found = _chip(config) + without_kernel(graph)
    if found:
        raise UnsupportedError(found)


def _chip(config: Config) -> list[Unsupported]:
    """Positions in tiles are computed by shifts."""
    if any(size & (size - 1) for size in (config.lanes, config.sublanes)):
        return [Unsupported(f"a chip of {config.lanes} lanes and {config.sublanes} sublanes", "",
                            "choose powers of two")]
    return []


def without_kernel(graph: Graph) -> list[Unsupported]:
    """Operations without a kernel, also in loops and conditionals; after `canonicalize`."""
    load_rules()
    found = []
    for operation in graph.operations:
        if operation.kind in CONTROL:
            for region in operation.regions:
                found += without_kernel(region)
        elif operation.kind not in HELD | _BETWEEN:
            why = refusal(operation)
            if why is not None:
                found.append(Unsupported(why.what, str(operation.location or ""), why.advice))
    return found
