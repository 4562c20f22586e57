"""Arrays larger than vector memory, at full size."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import Graph
from sim.compiler.program.driver import compile_graph
from systolith import Device
from verif.sim.compiler.passes.test_streaming import gather, product, scatter
from verif.sim.compiler.program.common import Maker, arrays_for, f32

V2 = Config.preset("v2")


def chain(rows: int) -> Graph:
    m = Maker(f32(rows, 1024), f32(rows, 1024))
    a, b = m.inputs
    return m.returns(m.op("maximum", m.op("add", m.op("multiply", a, b), a), b))


@pytest.fixture(scope="module")
def golden() -> Iterator[Device]:
    with Device.open(V2, "golden") as opened:
        yield opened


LARGE: dict[str, Callable[[], Graph]] = {
    "64 MiB": lambda: chain(16384),
    "lookups": lambda: gather(50_000, 128, 512),
    "their gradient": lambda: scatter(50_000, 128, 512),
    "product": lambda: product(2048, 4096, 128),
}
"""Graphs with operands or results of 16 MiB and more."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_results(golden: Device, name: str) -> None:
    """Results on the golden chip equal the interpreter's, as inputs are small integers."""
    graph = LARGE[name]()
    arrays = arrays_for(graph)
    [expected] = interpret(graph, arrays)
    [found] = golden.execute(compile_graph(graph, V2), *arrays)
    assert np.array_equal(found, expected)


@pytest.mark.slow
def test_golden_and_rtl_agree(golden: Device) -> None:
    graph = chain(2560)
    arrays = arrays_for(graph)
    executable = compile_graph(graph, V2)
    with Device.open(V2, "rtl") as device:
        [rtl] = device.execute(executable, *arrays)
    [found] = golden.execute(executable, *arrays)
    assert np.array_equal(rtl, found)
