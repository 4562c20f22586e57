"""Executables: what they name, link, keep and refuse."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.executable import BufferSpec, Executable, Role
from sim.compiler.handwritten.chain import LayerChain
from sim.compiler.handwritten.layers import LayerKind, compile_layers
from sim.compiler.handwritten.matmul import Matmul
from sim.compiler.layout import Panels

TINY = Config.preset("tiny")
LAYOUT = Panels((2, 4), (1, 2, 4), 0.0)


def test_places_beyond_hbm_are_named() -> None:
    executable = LayerChain.link(Matmul(TINY, 4, 4, 4)).executable
    addresses = {"x": 0, "weights[0]": 0, "result[0]": 0}
    with pytest.raises(ValueError, match=r"weights\[0\] must be a multiple of a row's 16 bytes, "
                                         "not 8"):
        executable.programs(addresses | {"weights[0]": 8})
    with pytest.raises(ValueError, match=r"result\[0\] must lie within 1048576 bytes of HBM, not "
                                         "64 bytes from 1048528 on"):
        executable.programs(addresses | {"result[0]": (1 << 20) - 48})
    with pytest.raises(ValueError, match=r"x must lie within"):
        executable.programs(addresses | {"x": -16})


def test_equal_placements_give_the_same_programs() -> None:
    executable = LayerChain.link(Matmul(TINY, 4, 4, 4)).executable
    addresses = {"x": 0, "weights[0]": 64, "result[0]": 128}
    one = executable.programs(addresses)
    other = executable.programs(addresses | {"x": 256})
    assert one[0].bundles != other[0].bundles
    assert executable.programs(dict(addresses)) is one


def test_equal_layers_give_the_same_executable() -> None:
    kinds = (LayerKind(6, False, True, True), LayerKind(3, True, False, False))
    one = compile_layers(TINY, 5, 7, kinds)
    assert compile_layers(Config.preset("tiny"), 5, 7, tuple(kinds)) is one
    assert compile_layers(TINY, 5, 8, kinds) is not one
    assert [spec.name for spec in one.inputs] == ["x", "weights[0]", "bias[0]", "weights[1]"]
    assert [spec.layout.shape for spec in one.inputs] == [(5, 7), (7, 6), (6,), (3, 6)]
    assert [spec.layout.shape for spec in one.outputs] == [(5, 6), (5, 3)]
    assert one.name == "a product of (5, 7) and (7, 6) and a product of (5, 6) and (6, 3)"


def test_an_epilogue_without_a_bias_has_a_constant() -> None:
    executable = compile_layers(TINY, 5, 7, (LayerKind(6, False, False, True),))
    (constant,) = (spec for spec in executable.buffers if spec.role is Role.CONSTANT)
    assert constant.value is not None
    assert constant.value.view(np.uint32).tolist() == [0x80000000] * 6
    assert len(executable.inputs) == 2


@pytest.mark.parametrize(("buffers", "message"), [
    ((BufferSpec("x", Role.INPUT, LAYOUT), BufferSpec("x", Role.OUTPUT, LAYOUT)),
     "buffers must have different names, not 'x' twice"),
    ((BufferSpec("x", Role.CONSTANT, LAYOUT),), "buffer 'x' must have a value if it is a constant"),
    ((BufferSpec("x", Role.SCRATCH, LAYOUT, np.zeros((2, 4), np.float32)),),
     "buffer 'x' must have a value if it is a constant, and only then, not role scratch"),
])
def test_contradictory_buffers_are_named(buffers: tuple[BufferSpec, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Executable(TINY, "nothing", buffers, lambda addresses: {}, 0)
