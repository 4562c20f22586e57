"""Cores of a device: programs, faults, timeouts, stops and resets, on both backends."""

import _thread
import threading
import time

import numpy as np
import pytest

from hdl.isa import Fault
from sim.asm.assembler import Program
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.models.hbm import HbmOptions
from systolith import CoreFaultError, CoreStoppedError, Device, DeviceTimeoutError
from verif.sim.driver.common import HALT, SEED, SPIN, TINY, check_product


def test_programs_of_both_cores_move_data(device: Device) -> None:
    """Each core doubles its half of a buffer; the descriptors come through scalar memory."""
    rows = np.random.default_rng(SEED).standard_normal((8, 4)).astype(np.float32)
    buffer = device.allocate(rows.nbytes)
    device.copy_in(buffer, rows)
    text = """
        { misc.dma 0 } { misc.wait sem3, 1 } { ld.load v1, s0 } { ld.load v2, s0, 1 }
        { v0.fadd v1, v1, v1 } { v0.fadd v2, v2, v2 } { st.store v1, s0 } { st.store v2, s0, 1 }
        { misc.dma 10 } { misc.wait sem3, 1 | s0.store s0, s0, 20 | s1.halt }"""
    for core in (0, 1):
        place = hbm(buffer.address + core * 64)
        device.load(core, assemble(text, TINY))
        device.write_smem(core, 0, [
            *descriptor(TINY, place, vmem(0), rows=4, semaphore=sem[3]),
            *descriptor(TINY, vmem(0), place, rows=4, semaphore=sem[3]), 77])
        assert device.read_smem(core, 20, 1).tolist() == [77]
        device.start(core)
    device.wait(cycles=100_000)
    np.testing.assert_array_equal(device.copy_out(buffer, np.float32, (8, 4)), rows + rows)
    assert [device.read_smem(core, 20, 1).item() for core in (0, 1)] == [0, 0]
    check_product(device)


def test_programs_go_where_they_are_put(device: Device) -> None:
    device.load(0, assemble("{ s0.store s0, s0 | s1.jump 7 }", TINY), at=5)
    device.load(0, HALT, at=7)
    device.write_smem(0, 0, [9])
    device.start(0, 5)
    device.wait([0], cycles=10_000)
    assert device.read_smem(0, 0, 1).item() == 0
    assert device.state(0).pc == 7


def test_a_run_of_no_mapping_is_refused(device: Device) -> None:
    with pytest.raises(TypeError, match="programs must map cores to programs, not \\["):
        device.run([HALT])  # type: ignore[arg-type]


def test_a_run_that_fails_can_be_run_again(device: Device) -> None:
    bad = assemble("{ pop.pop v1 }", TINY)
    with pytest.raises(CoreFaultError, match="core 1 stopped with fault FIFO_UNDERFLOW"):
        device.run({0: HALT, 1: bad}, cycles=9000)
    assert device.run({0: HALT, 1: HALT}, cycles=9000).keys() == {0, 1}
    assert device.run({}) == {}
    with pytest.raises(ValueError, match="core must be from 0 to 1, not 2"):
        device.run({0: SPIN, 2: HALT})
    assert not device.running(0)


@pytest.mark.parametrize("poll", [False, True])
def test_an_endless_program_is_a_timeout(device: Device, poll: bool) -> None:
    device.load(0, SPIN)
    device.load(1, HALT)
    device.start(0)
    device.start(1)
    with pytest.raises(DeviceTimeoutError, match="programs have not ended in time: core 0 runs at "
                                                 "bundle 0; core 1 is stopped") as raised:
        device.wait(cycles=3000, poll=poll)
    assert not raised.value.stuck
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        device.wait([0], seconds=0.05, poll=poll)
    assert time.monotonic() - began < 20
    device.wait([1], cycles=0, poll=poll)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError, match="a program is running on core 0, at bundle 0: wait"):
        device.matmul(one, one)
    with pytest.raises(RuntimeError, match="a program is running on core 0"):
        device.load(0, HALT)
    with pytest.raises(RuntimeError, match="a program is running on core 0"):
        device.start(0)
    device.stop(0)
    assert not device.running(0)
    device.wait(cycles=0, poll=poll)
    check_product(device)
    device.load(1, SPIN)
    device.start(1)
    device.reset()
    check_product(device)


@pytest.mark.parametrize("poll", [False, True])
def test_a_wait_that_nothing_ends_is_told_at_once_and_the_host_can_end_it(device: Device,
                                                                          poll: bool) -> None:
    device.load(1, assemble("{ misc.wait sem2, 3 } { s1.halt }", TINY))
    device.start(1)
    with pytest.raises(DeviceTimeoutError, match="semaphores that only the host can signal: core 0 "
                                                 "is stopped; core 1 waits at bundle 0") as raised:
        device.wait(poll=poll)
    assert raised.value.stuck
    assert raised.value.states[1].waiting
    device.signal(1, 2, 2)
    with pytest.raises(DeviceTimeoutError):
        device.wait(poll=poll)
    device.signal(1, 2)
    device.wait(poll=poll)


def test_a_watchdog_ends_a_wait_on_either_backend(device: Device) -> None:
    wait = assemble("{ } { misc.wait sem2, 1 } { s1.halt }", TINY)
    for core in (0, 1):
        device.load(core, wait)
    device.set_watchdog(1, 4000)
    device.start(0)
    device.start(1)
    with pytest.raises(CoreFaultError, match="core 1 stopped with fault WATCHDOG at bundle 1: "
                                             r"\{ misc\.wait sem2, 1") as raised:
        device.wait(cycles=20_000)
    assert raised.value.cause is Fault.WATCHDOG
    assert (device.fault(0), device.fault(1)) == (Fault.NONE, Fault.WATCHDOG)
    assert device.running(0)
    # The other core has none: its wait is for ever.
    with pytest.raises(DeviceTimeoutError, match="core 0 waits at bundle 1") as stuck:
        device.wait([0])
    assert stuck.value.stuck
    # It outlives a reset, and bundles keep it quiet.
    device.reset()
    check_product(device)
    device.load(1, assemble("{ s0.add s1, s0, 9000 } a: { s1.loop s1, a } { s1.halt }", TINY))
    device.start(1)
    device.wait([1])
    device.load(1, wait)
    device.start(1)
    with pytest.raises(CoreFaultError, match="WATCHDOG"):
        device.wait([1], cycles=20_000)
    device.set_watchdog(1, 0)
    device.start(1)
    with pytest.raises(DeviceTimeoutError) as stuck:
        device.wait([1], cycles=20_000)
    assert stuck.value.stuck
    device.signal(1, 2)
    device.wait([1], cycles=20_000)
    assert device.fault(1) is Fault.NONE


FAULTS = [
    ("{ } place: { ld.load v1, s0, 0x1000 }", Fault.VMEM_RANGE, 1, "ld.load v1, s0, 4096"),
    ("{ } { } { pop.pop v3 }", Fault.FIFO_UNDERFLOW, 2, "pop.pop v3"),
    ("{ s1.jump 0x200 }", Fault.PC_RANGE, 0x200, ""),
    ("{ s0.add s1, s0, 4 } { misc.dma s1 }", Fault.DMA_ALIGNMENT, 1, "misc.dma s1"),
]


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize(("text", "cause", "pc", "bundle"), FAULTS,
                         ids=[cause.name for _, cause, _, _ in FAULTS])
def test_faults_say_where_and_why(device: Device, poll: bool, text: str, cause: Fault, pc: int,
                                  bundle: str) -> None:
    program = assemble(text, TINY)
    words = list(descriptor(TINY, hbm(0), vmem(0), rows=2))
    words[2] = 8  # not a row's address
    device.write_smem(1, 4, words)
    device.load(0, SPIN)
    device.load(1, program)
    device.start(0)
    device.start(1)
    with pytest.raises(CoreFaultError) as raised:
        device.wait(cycles=100_000, poll=poll)
    error = raised.value
    assert (error.core, error.cause, error.pc) == (1, cause, pc)
    assert error.bundle == (program[pc] if bundle else None)
    assert bundle in error.text
    message = str(error)
    assert message.startswith(f"core 1 stopped with fault {cause.name} at bundle {pc}")
    assert bundle in message
    assert device.running(0)
    # It stays until the next start.
    with pytest.raises(CoreFaultError):
        device.wait([1], cycles=0)
    device.load(1, HALT)
    device.start(1)
    device.wait([1], cycles=10_000)
    device.reset()
    check_product(device)


def test_branches_of_a_fault_are_shown_with_their_labels(device: Device) -> None:
    device.load(0, assemble("{ } there: { pop.pop v3 | s1.jump there }", TINY))
    device.start(0)
    with pytest.raises(CoreFaultError, match=r"s1\.jump there"):
        device.wait()
    bundles = assemble("{ } { pop.pop v3 | s1.jump 1 }", TINY).bundles
    device.load(0, Program(bundles, {}))
    device.start(0)
    with pytest.raises(CoreFaultError, match=r"s1\.jump 1") as raised:
        device.wait()
    assert raised.value.bundle == bundles[1]


@pytest.mark.parametrize("reads", [True, False])
def test_a_bus_error_is_a_fault_and_is_over_after_a_reset(reads: bool) -> None:
    with Device.open("tiny", memory=HbmOptions(latency=9, stalls=9000, seed=SEED)) as device:
        assert device.model is not None
        check_product(device)
        device.model.memory.fail(0, TINY.hbm_bytes // 4, 2, reads=reads, writes=not reads)
        with pytest.raises(CoreFaultError, match="BUS_ERROR near bundle") as raised:
            check_product(device, 30, 30, 30)
        assert raised.value.cause is Fault.BUS_ERROR
        device.model.memory.heal()
        check_product(device, 30, 30, 30)


def test_ctrl_c_ends_a_wait(device: Device) -> None:
    device.load(0, SPIN)
    device.start(0)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        device.wait()
    timer.join()
    device.reset()
    assert not device.running(0)
    check_product(device)


def test_another_thread_can_end_what_is_waited_for(device: Device) -> None:
    device.load(0, SPIN)
    device.start(0)
    for end in (device.stop, device.reset, lambda: device.reset(0)):
        for work in (lambda: device.wait(seconds=60), lambda: device.run({0: SPIN}, seconds=60)):
            timer = threading.Timer(0.1, end)
            timer.start()
            with pytest.raises(CoreStoppedError, match="core 0 was stopped or reset") as raised:
                work()
            timer.join()
            assert (raised.value.core, raised.value.pc) == (0, device.state(0).pc)
            assert not device.running(0)
        check_product(device)
        device.load(0, SPIN)
        device.start(0)
    device.stop()
    device.start(0, device.state(0).pc)
    device.stop(0)
    device.wait()  # nobody has waited when it was stopped
    device.start(0)
    timer = threading.Timer(0.1, device.close)
    timer.start()
    with pytest.raises(RuntimeError, match="device is closed"):
        device.wait(seconds=60)
    timer.join()


def test_two_devices_run_at_once() -> None:
    with (Device.open("tiny") as first, Device.open("tiny") as second,
          Device.open("tiny", backend="golden") as third):
        for device in (first, second, third):
            device.load(0, SPIN)
            device.start(0)
        second.stop()
        check_product(second)
        assert first.running(0)
        assert third.running(0)
        first.close()
        third.reset()
        check_product(third)
        check_product(second)
