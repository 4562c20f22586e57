"""Executables: their names, their programs for given addresses, their files, their errors."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.dense.graph import Division, layers_graph
from sim.compiler.dense.layers import LayerKind
from sim.compiler.executable import BufferSpec, Executable, Role
from sim.compiler.program.arrays import RawRows
from sim.compiler.program.driver import compile_graph

TINY = Config.preset("tiny")
LAYOUT = RawRows(2, 4)


@pytest.fixture(scope="module")
def executable() -> Executable:
    """The executable of a product: its buffers are input0, input1, output0 and code."""
    kinds = (LayerKind(4, False, False, False),)
    return compile_graph(layers_graph(4, 4, kinds, Division.NONE), TINY)


ADDRESSES = {"input0": 0, "input1": 64, "output0": 128, "code": 256}


def test_places_beyond_hbm_are_named(executable: Executable) -> None:
    assert [spec.name for spec in executable.buffers] == list(ADDRESSES)
    with pytest.raises(ValueError, match="input1 must be a multiple of a row's 16 bytes, not 8"):
        executable.programs(ADDRESSES | {"input1": 8})
    with pytest.raises(ValueError, match="output0 must lie within 1048576 bytes of HBM, not "
                                         "take 64 bytes from address 1048528 on"):
        executable.programs(ADDRESSES | {"output0": (1 << 20) - 48})
    with pytest.raises(ValueError, match=r"input0 must lie within"):
        executable.programs(ADDRESSES | {"input0": -16})


def test_equal_placements_give_the_same_programs(executable: Executable) -> None:
    one = executable.programs(ADDRESSES)
    other = executable.programs(ADDRESSES | {"code": 4096})
    assert one[0].bundles != other[0].bundles
    assert executable.programs(dict(ADDRESSES)) is one


def test_unpacking_copies(executable: Executable) -> None:
    for spec in executable.buffers:
        memory = np.full((spec.layout.rows, TINY.lanes), 0x7F812345, np.uint32)
        got = spec.layout.unpack(memory)
        memory[:] = 0
        assert (got.view(np.uint32) == 0x7F812345).all()


@pytest.mark.parametrize(("buffers", "message"), [
    ((BufferSpec("x", Role.INPUT, LAYOUT), BufferSpec("x", Role.OUTPUT, LAYOUT)),
     "buffers must have different names, not 'x' twice"),
    ((BufferSpec("x", Role.CONSTANT, LAYOUT),), "buffer 'x' must have role constant and a value"),
    ((BufferSpec("x", Role.SCRATCH, LAYOUT, np.zeros((2, 4), np.uint32)),),
     "must have role constant and a value, or another role and no value, not role scratch"),
])
def test_contradictory_buffers_are_named(buffers: tuple[BufferSpec, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Executable(TINY, "nothing", buffers, lambda addresses: {}, 0)
