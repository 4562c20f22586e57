"""Operations without a possible kernel are refused, all in one message."""

import pytest

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Location, TensorType
from sim.compiler.program.driver import compile_graph
from sim.errors import UnsupportedError
from verif.sim.compiler.program.common import TINY, Maker, f32, pred, s32


def located(m: Maker, line: int) -> None:
    m.graph.operations[-1].location = Location("model.py", line, "f")


def reducer(kind: str, type: TensorType) -> Graph:
    m = Maker(type, type)
    return m.returns(m.op(kind, *m.inputs))


def mixing_scatter(m: Maker, mixed: bool) -> None:
    """A scatter of two operands; if ``mixed``, each result depends on the other's element."""
    inner = Maker(f32(), f32(), f32(), f32())
    a, b, x, y = inner.inputs
    region = inner.returns(inner.op("add", b if mixed else a, x),
                           inner.op("add", a if mixed else b, y))
    m.graph.add("scatter", m.inputs, [f32(5), f32(5)], {
        "update_window_dims": (), "inserted_window_dims": (0,), "input_batching_dims": (),
        "scatter_indices_batching_dims": (), "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1, "indices_are_sorted": False, "unique_indices": False}, [region])


def test_everything_is_refused_at_once_with_lines() -> None:
    m = Maker(f32(5), f32(5), s32(3, 1), f32(3), f32(3))
    mixing_scatter(m, mixed=True)
    located(m, 7)
    one, two = m.graph.operations[-1].results
    initial = m.inputs[3]
    scalar = m.op("reshape", m.op("slice", initial, to=f32(1), start_indices=(0,),
                                  limit_indices=(1,), strides=(1,)), to=f32())
    rest = m.graph.add("reduce", [one, scalar], f32(), {"dimensions": (0,)},
                       [reducer("remainder", f32())]).result
    located(m, 9)
    with pytest.raises(UnsupportedError) as caught:
        compile_graph(m.returns(rest, two), TINY)
    assert [(item.what, item.where) for item in caught.value.found] == [
        ("scatter whose function combines several operands", "model.py:7 (f)"),
        ("reduce whose function contains remainder", "model.py:9 (f)")]
    assert all(item.advice for item in caught.value.found)


def test_regions_of_loops_are_checked() -> None:
    m = Maker(f32(4))
    condition = Maker(f32(4))
    [x] = condition.inputs
    condition.returns(condition.op(
        "reshape", condition.op("slice", condition.compare(x, x, "LT"),
                                to=pred(1), start_indices=(0,), limit_indices=(1,), strides=(1,)),
        to=pred()))
    body = Maker(f32(4))
    zero = body.op("reshape", body.op("slice", *body.inputs, to=f32(1), start_indices=(0,),
                                      limit_indices=(1,), strides=(1,)), to=f32())
    total = body.graph.add("reduce", [body.inputs[0], zero], f32(), {"dimensions": (0,)},
                           [reducer("remainder", f32())]).result
    body.returns(body.op("broadcast_in_dim", total, to=f32(4), broadcast_dimensions=()))
    m.returns(*m.control("while", m.inputs, [condition.graph, body.graph], [f32(4)]))
    with pytest.raises(UnsupportedError, match="reduce whose function contains remainder"):
        compile_graph(m.graph, TINY)


def test_dead_code_is_not_refused() -> None:
    m = Maker(f32(5), f32(5), s32(3, 1), f32(3), f32(3))
    mixing_scatter(m, mixed=True)
    compile_graph(m.returns(m.op("add", m.inputs[0], m.inputs[1])), TINY)


def test_scatter_of_separate_operands_is_taken() -> None:
    m = Maker(f32(5), f32(5), s32(3, 1), f32(3), f32(3))
    mixing_scatter(m, mixed=False)
    compile_graph(m.returns(*m.graph.operations[-1].results), TINY)


@pytest.mark.parametrize(("array", "sublanes"), [(6, 3), (6, 2), (12, 4)])
def test_chip_must_have_lanes_and_sublanes_of_powers_of_two(array: int, sublanes: int) -> None:
    config = Config(array=array, sublanes=sublanes, vmem_bytes=array * sublanes << 10,
                    smem_words=1024)
    m = Maker(f32(9))
    with pytest.raises(UnsupportedError, match=f"a chip of {array} lanes and {sublanes} sublanes: "
                                               "choose powers of two"):
        compile_graph(m.returns(m.op("negate", *m.inputs)), config)
