"""Memory of a device: buffers in HBM, the cores' memories and registers, on both backends."""

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from hdl.isa import Fault
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.driver.backend import SIMULATED
from sim.models.hbm import HbmOptions
from systolith import Buffer, Device, DeviceTimeoutError
from verif.sim.driver.common import FREE, SEED, TINY, check_product


def test_buffers_hold_what_is_copied(device: Device) -> None:
    rng = np.random.default_rng(SEED)
    first, second = device.allocate(100), device.allocate(17)
    assert (first.size, second.size) == (100, 17)
    assert (first.address % TINY.row_bytes, second.address % TINY.row_bytes) == (0, 0)
    one = rng.standard_normal((5, 5)).astype(np.float32)
    two = rng.integers(0, 256, 17, np.uint8)
    device.copy_in(first, one.T)
    device.copy_in(second, two)
    np.testing.assert_array_equal(device.copy_out(first, np.float32, (5, 5)), one.T)
    np.testing.assert_array_equal(device.copy_out(second, np.uint8, 17), two)
    device.copy_in(first, two, offset=83)
    np.testing.assert_array_equal(device.copy_out(first, np.uint8, (17,), offset=83), two)
    np.testing.assert_array_equal(device.copy_out(first, np.float32, 20), one.T.ravel()[:20])


def test_memory_is_given_out_once_and_taken_back(device: Device) -> None:
    rng = np.random.default_rng(SEED)
    live: list[Buffer] = []
    for number in range(300):
        if live and rng.integers(2):
            device.free(live.pop(int(rng.integers(len(live)))))
        else:
            live.append(device.allocate(int(rng.integers(1, 5000))))
        places = sorted((buffer.address, buffer.address + buffer.size) for buffer in live)
        assert all(end <= start for (_, end), (start, _) in
                   itertools.pairwise(places)), (SEED, number)
    for buffer in live:
        device.free(buffer)
    device.free(device.allocate(FREE))


def test_free_memory_is_counted(device: Device) -> None:
    assert device.free_bytes == FREE
    buffers = [device.allocate(size) for size in (1, 17, 4000)]
    assert device.free_bytes == FREE - 16 - 32 - 4000
    device.free(buffers[1])
    assert device.free_bytes == FREE - 16 - 4000
    with Device.open(Config.preset("tiny", hbm_bytes=8192), "golden") as small:
        assert small.free_bytes == 8192 * 3 // 4
        check_product(small, 1, 1, 1)
    with pytest.raises(ValueError, match="hbm_bytes must be at least 8192 for a host to reach"):
        Device.open(Config(array=256, sublanes=8, hbm_bytes=4096, hbm_channels=8), "golden")


def test_too_much_memory_is_named(device: Device) -> None:
    device.allocate(FREE - 160)
    with pytest.raises(MemoryError, match=r"a buffer needs 176 contiguous bytes of HBM, but the "
                                          r"largest free block has 160 of 160 free bytes"):
        device.allocate(161)
    one = np.ones((4, 4), np.float32)
    with pytest.raises(MemoryError, match=r"a product of \(4, 4\) and \(4, 4\) needs 704 bytes of "
                                          r"HBM, 160 of 1048576 are free"):
        device.matmul(one, one)
    assert device.allocate(160)


def test_products_leave_buffers_alone_and_give_memory_back(device: Device) -> None:
    kept = device.allocate(5000)
    data = np.random.default_rng(SEED).integers(0, 256, 5000, np.uint8)
    device.copy_in(kept, data)
    for _ in range(2):
        check_product(device, 40, 9, 9)
    np.testing.assert_array_equal(device.copy_out(kept, np.uint8, 5000), data)
    device.free(kept)
    device.free(device.allocate(FREE))


def test_bad_buffers_are_refused(device: Any) -> None:
    buffer = device.allocate(64)
    with Device.open("tiny", backend="golden") as other:
        foreign = other.allocate(64)
    for bad in (foreign, device.allocate(8)):
        if bad is not foreign:
            device.free(bad)
        for use in (device.free, lambda bad: device.copy_in(bad, np.zeros(1)),
                    lambda bad: device.copy_out(bad, np.uint8, 1)):
            with pytest.raises(ValueError, match="buffer must be one that this device allocated"):
                use(bad)
    with pytest.raises(TypeError, match="buffer must be a Buffer, not 64"):
        device.free(64)
    with pytest.raises(ValueError, match="buffer's 64 bytes, not take 72 bytes from byte 0 on"):
        device.copy_in(buffer, np.zeros(9))
    with pytest.raises(ValueError, match="buffer's 64 bytes, not take 8 bytes from byte 60 on"):
        device.copy_out(buffer, np.float64, 1, offset=60)
    with pytest.raises(TypeError, match="array must be a numpy array of numbers"):
        device.copy_in(buffer, [1])
    with pytest.raises(TypeError, match="dtype must be a numeric type"):
        device.copy_out(buffer, object, 1)
    with pytest.raises(TypeError, match="dtype must be a numeric type, not None"):
        device.copy_out(buffer, None, 1)
    with pytest.raises(TypeError, match=r"dtype must be a numeric type, not array\(\[0"):
        device.copy_out(buffer, np.zeros(3), 3)
    with pytest.raises(TypeError, match="dtype must be a numeric type, not <class 'str'>"):
        device.copy_out(buffer, str, 3)
    with pytest.raises(ValueError, match="a size of shape must be at least 0, not -1"):
        device.copy_out(buffer, np.uint8, (2, -1))
    with pytest.raises(TypeError, match="shape must be an integer, not 'x'"):
        device.copy_out(buffer, np.uint8, "x")
    with pytest.raises(ValueError, match="size must be from 1"):
        device.allocate(0)


COUNTING = """
    again: { misc.dma 0 } { misc.wait sem3, 1 | s0.add s2, s0, 0 }
    each: { ld.load v1, s2 } { v0.add v1, v1, 1 } { st.store v1, s2 }
    { s0.add s2, s2, 1 } { s0.sub s3, s2, 32 } { s1.bne s3, s0, each }
    { misc.dma 10 } { misc.wait sem3, 1 | s0.add s4, s4, 1 | s1.loop s1, again } { s1.halt }"""


@pytest.mark.parametrize("memory", [None, HbmOptions(latency=9, stalls=9000, seed=SEED)],
                         ids=["fast", "stalls"])
@pytest.mark.parametrize("backend", SIMULATED)
def test_host_and_programs_may_use_memory_at_the_same_time(backend: str,
                                                           memory: HbmOptions | None) -> None:
    """A program of core 1 counts in the heap's last rows while the host accesses core 0."""
    rng = np.random.default_rng(SEED)
    rounds = 150
    with Device.open("tiny", backend, memory=memory) as device:
        buffer = device.allocate(device.free_bytes)
        counted = rng.integers(0, 1 << 32, (64, 4), np.uint32)
        first = buffer.size - counted.nbytes
        device.copy_in(buffer, counted, first)
        place = hbm(buffer.address + first)
        device.load(1, assemble(COUNTING, TINY))
        device.write_smem(1, 0, [
            *descriptor(TINY, place, vmem(0), rows=64, semaphore=sem[3]),
            *descriptor(TINY, vmem(0), place, rows=64, semaphore=sem[3])])
        device.write_scalars(1, 1, [rounds])
        device.start(1)
        looks = 0
        while device.running(1):
            bundles = [int.from_bytes(rng.bytes(36), "little") for _ in range(200)]
            device.load(0, bundles)
            for number in (0, int(rng.integers(200)), 199):
                assert device._backend is not None
                assert device._backend.bundle(0, number) == bundles[number]
            words = rng.integers(0, 1 << 32, (TINY.vmem_vectors, 2, 4), np.uint32)
            device.write_vmem(0, 0, words)
            np.testing.assert_array_equal(device.read_vmem(0, 0, TINY.vmem_vectors), words)
            looks += 1
            if device.running(1):
                with contextlib.suppress(DeviceTimeoutError):
                    device.wait([1], cycles=500)
        device.wait([1])
        assert looks > 3
        assert device.read_scalars(1)[4] == rounds
        got = device.copy_out(buffer, np.uint32, counted.shape, first)
        np.testing.assert_array_equal(got, counted + np.uint32(rounds))


@pytest.mark.parametrize("memory", [None, HbmOptions(latency=17, stalls=20_000, seed=SEED)],
                         ids=["fast", "stalls"])
def test_both_backends_show_the_same_of_a_core(memory: HbmOptions | None) -> None:
    """Both show the same vector memory, registers and semaphores, before and after a program."""
    rng = np.random.default_rng(SEED)
    words = rng.integers(0, 1 << 32, (TINY.vmem_vectors, 2, 4), np.uint32)
    floats = rng.standard_normal((3, 2, 4)).astype(np.float32)
    scalars = rng.integers(0, 1 << 32, 32, np.uint32)
    program = assemble("""{ ld.load v1, s0, 250 } { v0.fadd v1, v1, v1 } { st.store v1, s0, 7 }
                          { s0.add s4, s5, s6 | misc.signal sem9, 77 } { s1.halt }""", TINY)
    seen = []
    for backend in SIMULATED:
        with Device.open("tiny", backend=backend, memory=memory) as device:
            buffer = device.allocate(20_000)
            device.copy_in(buffer, words.reshape(-1)[:5000 // 4])
            for core in (0, 1):
                device.write_vmem(core, 0, words[::1 - 2 * core])
                device.write_vmem(core, 250, floats[core:])
                device.write_scalars(core, 0, scalars)
                device.write_scalars(core, 5, [3 + core, 4])
                device.signal(core, 9, 5)
            device.run(dict.fromkeys((0, 1), program))
            for core in (0, 1):
                shown = [device.read_vmem(core, 0, TINY.vmem_vectors), device.read_scalars(core),
                         device.read_semaphores(core), device.read_vmem(core, 256, 0)]
                expected = words[::1 - 2 * core].copy()
                expected[250:253 - core] = floats[core:].view(np.uint32)
                expected[7] = (floats[core] + floats[core]).view(np.uint32)
                np.testing.assert_array_equal(shown[0], expected)
                assert shown[1].tolist() == [0, *scalars[1:4], 7 + core, 3 + core, 4, *scalars[7:]]
                assert shown[2].tolist() == [0] * 9 + [82] + [0] * 6
                assert shown[3].shape == (0, 2, 4)
                np.testing.assert_array_equal(device.read_vmem(core, 251, 5), expected[251:])
                assert all(array.dtype == np.uint32 for array in shown)
                seen += shown
            copy = device.read_vmem(1, 255, 1)
            copy[:] = 0
            assert device.read_vmem(1, 255, 1).any()
            np.testing.assert_array_equal(device.copy_out(buffer, np.uint32, 1250),
                                          words.reshape(-1)[:1250])
    for one, other in zip(seen[:8], seen[8:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_running_core_shows_its_memory_but_not_its_registers(device: Device) -> None:
    device.load(0, assemble("""again: { s0.add s1, s1, 1 | misc.signal sem3, 1 }
                               { st.store v1, s0, 9 } { s1.jump again }""", TINY))
    ones = np.ones((2, 2, 4), np.float32)
    device.start(0)
    device.write_vmem(0, 9, ones)
    with pytest.raises(DeviceTimeoutError):
        device.wait(cycles=2000)
    assert device.read_semaphores(0)[3] > 100
    np.testing.assert_array_equal(device.read_vmem(0, 9, 2).view(np.float32), ones * [[[0]], [[1]]])
    with pytest.raises(RuntimeError, match="a program is running on core 0"):
        device.read_scalars(0)
    with pytest.raises(RuntimeError, match="a program is running on core 0"):
        device.write_scalars(0, 1, [1])
    assert device.fault(0) is Fault.NONE
    device.stop(0)
    assert device.read_scalars(0)[1] > 100
