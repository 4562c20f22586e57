"""Refuses programs that contain operations without a kernel."""

from hdl.config import Config
from sim.compiler.graph.ir import Graph
from sim.compiler.kernels.lowering import refusal
from sim.compiler.program.launch.kernel import load_rules
from sim.compiler.program.tilings import CONTROL, HELD
from sim.errors import Unsupported, UnsupportedError

__all__ = ["check", "without_kernel"]

_BETWEEN = frozenset({"by_device", "exchange", "pod_sum"})
"""Kinds of operations that only programs for several cores contain; they need no kernel."""


def check(graph: Graph, config: Config) -> None:
    """Refuse operations that have no kernel, and chips on which no kernel can run.

    Parameters
    ----------
    graph : Graph
        The graph after all passes.
    config : Config
        The chip; its lanes and sublanes must be powers of two.

    Raises
    ------
    UnsupportedError
        If anything is refused; the message lists all of it, with the user's source lines.
    """
    found = _chip(config) + without_kernel(graph)
    if found:
        raise UnsupportedError(found)


def _chip(config: Config) -> list[Unsupported]:
    """Refuse a chip whose lanes or sublanes are not powers of two.

    Kernels divide indices by these numbers, and do so by shifts.
    """
    if any(size & (size - 1) for size in (config.lanes, config.sublanes)):
        return [Unsupported(f"a chip of {config.lanes} lanes and {config.sublanes} sublanes", "",
                            "choose powers of two")]
    return []


def without_kernel(graph: Graph) -> list[Unsupported]:
    """Return all operations that have no kernel, including those in loops and conditionals.

    The graph must have passed `sim.compiler.passes.canonicalize.canonicalize`.
    """
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
