"""Products that are divided into parts, as the sums of a pod are."""

from typing import Any

import numpy as np
import pytest

from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import Graph, Sharding, Value
from sim.compiler.graph.torus import PodSharding, Torus
from sim.compiler.passes.split_products import split_products
from verif.sim.compiler.program.common import Maker, f32

PRODUCT = {"lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,),
           "lhs_batching_dimensions": (), "rhs_batching_dimensions": ()}


def rows(at: Maker, value: Value, start: int, end: int, columns: int = 6) -> Value:
    return at.op("slice", value, to=f32(end - start, columns), start_indices=(start, 0),
                 limit_indices=(end, columns), strides=(1, 1))


def graph_of(*cuts: tuple[int, int], columns: int = 6, pod: bool = True) -> Graph:
    """A graph that returns slices of a product of 8 rows and 6 columns."""
    at = Maker(f32(5, 8), f32(5, 6))
    product = at.op("dot_general", *at.inputs, to=f32(8, 6), **PRODUCT)
    graph = at.returns(*[rows(at, product, start, end, columns) for start, end in cuts])
    if pod:
        none: Any = (None,)
        graph.sharding = Sharding(none * 2, none * len(cuts),
                                  PodSharding(Torus(2, 1), none * 2, none * len(cuts)))
    return graph


def test_rows_of_a_product_are_products_of_rows() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (5, 6))]
    graph = graph_of((0, 4), (4, 6), (6, 8))
    split_products(graph)
    assert [operation.kind for operation in graph.operations] == ["slice", "dot_general"] * 3
    assert graph.operations[0].result.shape == (5, 4)
    graph.sharding = None
    found = np.concatenate(interpret(graph, arrays))
    np.testing.assert_allclose(found, arrays[0].T @ arrays[1], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("graph", [
    graph_of((0, 5), (4, 8)), graph_of((0, 8)), graph_of((0, 4), (4, 8), columns=3),
    graph_of((0, 4), (4, 8), pod=False)])
def test_other_products_stay_whole(graph: Graph) -> None:
    before = [operation.kind for operation in graph.operations]
    split_products(graph)
    assert [operation.kind for operation in graph.operations] == before
