"""Values that are transferred while kernels run, and their places in vector memory."""

from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.launch.launcher import Launcher
from sim.compiler.program.places.clock import Clock
from sim.compiler.program.places.memory import VectorMemory
from sim.compiler.program.places.places import Places
from sim.compiler.program.places.trial import Trial
from sim.compiler.tiling import standard
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, f32

CONFIG = Config.preset("tiny", imem_bundles=8192, vmem_bytes=64 << 10, smem_words=8192)

def test_full_queue_holds_the_core() -> None:
    clock = Clock(CONFIG)
    for _ in range(4):
        assert clock.hold == 0
        clock.start(1000, 1)
    # The first transfer began 63 cycles after the start, and 52 of the core's cycles are over.
    assert clock.hold == 1063 - 4 * 13
    clock.run(500)
    assert clock.hold == 511
    clock.wait(2)
    assert clock.hold == 0
    clock.start(6000, 6)
    # Two transfers are ahead of the six, of which the second one is complete: the queue is full.
    assert clock.hold == 1000 - 13


def test_trial_changes_nothing_and_evicts_what_is_used_last() -> None:
    memory = VectorMemory(Stream(), TINY)
    near, far, new = (Value(f32(64, TINY.lanes)) for _ in range(3))
    tilings = {value: standard(value.shape, TINY) for value in (near, far, new)}
    size, room = tilings[new].vectors, TINY.vmem_vectors
    memory.free.reserve(0, room - size // 2)
    resident = {near: VmemBuffer("near", 0, size), far: VmemBuffer("far", size, size)}
    trial = Trial(memory, resident, set(), tilings, lambda value: False)
    trial.distance = {near: 1, far: 2, new: 0}.__getitem__
    trial.locked = {new}
    trial.make(new)
    assert trial.evicted == [far]
    assert trial.has(new)
    assert not trial.has(far)
    trial.scratch(room)
    assert trial.stuck
    assert memory.free.free == size // 2
    assert set(resident) == {near, far}


def test_large_operand_is_left_to_the_product_that_loads_it() -> None:
    """The product reads it from HBM while the array runs, so it takes no vectors before."""
    m = Maker(f32(2, 64), f32(64, 64))
    x, w = m.inputs
    y = m.op("add", m.op("multiply", x, x), x)
    dot = m.graph.add("dot_general", (y, w), f32(2, 64), {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        "precision_config": ("DEFAULT", "DEFAULT")}).result
    graph = m.returns(dot)
    assert standard((64, 64), CONFIG).vectors * 4 >= CONFIG.vmem_vectors
    executable = compile_graph(graph, CONFIG)
    assert len(compiled_of(executable).cores[0].overlays.row_numbers) == 2
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-3, 4, size).astype(np.float32) for size in ((2, 64), (64, 64)))
    with Device.open(CONFIG, "golden") as device:
        [found] = device.execute(executable, a, b)
    assert np.array_equal(found, (a * a + a) @ b)


def test_value_is_saved_ahead_but_not_before_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of calls is checked, because the golden chip reads a transfer's source late."""
    written, saved = set[Value](), list[Value]()
    kernel, save = Launcher.kernel, Places.save

    def write(self: Launcher, operation: Operation, *arguments: Any) -> None:
        kernel(self, operation, *arguments)
        written.update(operation.results)

    def check(self: Places, value: Value) -> None:
        if value not in self.homes:
            assert value in written
            saved.append(value)
        save(self, value)

    monkeypatch.setattr(Launcher, "kernel", write)
    monkeypatch.setattr(Places, "save", check)
    shape = (20, 32)
    assert 3 < TINY.vmem_vectors / standard(shape, TINY).vectors < 4
    m = Maker(f32(*shape))
    [x] = m.inputs
    far, first, second = (m.op("reverse", x, dimensions=along) for along in ((0,), (1,), (0, 1)))
    near = m.op("reverse", m.op("subtract", first, second), dimensions=(0,))
    executable = compile_graph(m.returns(m.op("subtract", far, near)), TINY)
    assert saved
    array = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    with Device.open(TINY, "golden") as device:
        [found] = device.execute(executable, array)
    assert np.array_equal(found, array[::-1] - (array[:, ::-1] - array[::-1, ::-1])[::-1])
