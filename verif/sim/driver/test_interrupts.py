"""Products are right after other programs, interrupts and an interrupted clean-up."""

from typing import Any

import numpy as np
import pytest

from golden.mxu import matmul
from sim.asm.text import assemble
from systolith import Device
from verif.sim.driver.common import FREE, SEED, TINY, assert_same_bits, check_product, operands


def test_what_a_program_leaves_in_the_array_does_not_reach_a_product(device: Device) -> None:
    # Half a load of weights, transposed ones, and semaphores.
    device.load(0, assemble("{ push.weights_t v1 | misc.signal sem0, 5 } { s1.halt }", TINY))
    device.start(0)
    device.wait()
    device.signal(1, 1, 9)
    check_product(device)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_product_that_is_interrupted_leaves_the_device_usable(device: Any,
                                                                monkeypatch: pytest.MonkeyPatch,
                                                                calls: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 300, 20, 20, False)
    advance, count = device._backend.advance, []

    def interrupted(steps: int, interrupt: bool) -> bool:
        count.append(steps)
        if len(count) == calls:
            advance(17, interrupt)
            raise KeyboardInterrupt
        return advance(steps, interrupt)

    monkeypatch.setattr(device._backend, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.matmul(a, b)
    assert len(count) == calls
    monkeypatch.undo()
    assert not device.running(0)
    assert not device.running(1)
    assert_same_bits(device.matmul(a, b), matmul(a, b, 4))
    device.free(device.allocate(FREE))


def test_a_product_whose_cleaning_up_is_interrupted_keeps_its_buffers(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that still run must not write buffers that were allocated later."""
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 300, 20, 20, False)

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(device._backend, "advance", interrupted)
    monkeypatch.setattr(device._backend, "reset_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.matmul(a, b)
    monkeypatch.undo()
    assert device.running(0)
    free = device.free_bytes
    assert free < FREE
    buffer = device.allocate(free)
    zeros = np.zeros(free, np.uint8)
    device.copy_in(buffer, zeros)
    device.wait()
    assert not device.copy_out(buffer, np.uint8, free).any()
    device.free(buffer)
    # The next product, or a reset, ends all that.
    assert_same_bits(device.matmul(a[:20], b), matmul(a[:20], b, 4))
    device.free(device.allocate(FREE))
