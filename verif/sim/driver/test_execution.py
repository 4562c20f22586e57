"""Executables on a device: buffers of every role and type, and the data kept between runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdl.config import Config
from sim.asm.assembler import Assembler, Program
from sim.asm.descriptor import Place, descriptor, hbm, vmem
from sim.asm.operands import s, sem, v
from sim.asm.text import assemble
from sim.compiler.executable import BufferSpec, Executable, Role
from systolith import CoreFaultError, Dense, Device
from verif.sim.driver.common import HALT, SEED, TINY


@dataclass(frozen=True)
class Plain:
    """The layout of an array in C order that fills whole rows."""

    shape: tuple[int, ...]
    kind: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.kind)

    @property
    def rows(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize // TINY.row_bytes

    def pack(self, array: npt.NDArray[Any], memory: npt.NDArray[np.uint32]) -> None:
        memory[:] = array.reshape(-1).view(np.uint32).reshape(memory.shape)

    def unpack(self, memory: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
        return memory.copy().reshape(-1).view(self.dtype).reshape(self.shape)


def transfer(asm: Assembler, source: Place, destination: Place) -> None:
    """Assemble a transfer of two rows and the wait for its end."""
    for place, word in enumerate(descriptor(TINY, source, destination, rows=2, semaphore=sem[5])):
        with asm.bundle() as bundle:
            bundle.s0.add(s[1], s[0], word)
        with asm.bundle() as bundle:
            bundle.s0.store(s[1], s[0], place)
    with asm.bundle() as bundle:
        bundle.misc.dma(0)
    with asm.bundle() as bundle:
        bundle.misc.wait(sem[5], 1)


def link(addresses: Mapping[str, int]) -> dict[int, Program]:
    """A program of core 1: ``total = number + constant``; ``copy = text`` via scratch."""
    asm = Assembler(TINY)
    transfer(asm, hbm(addresses["number"]), vmem(0))
    transfer(asm, hbm(addresses["constant"]), vmem(1))
    for register in (1, 2):
        with asm.bundle() as bundle:
            bundle.ld.load(v[register], s[0], register - 1)
    with asm.bundle() as bundle:
        bundle.v0.add(v[1], v[1], v[2])
    with asm.bundle() as bundle:
        bundle.st.store(v[1], s[0], 0)
    transfer(asm, vmem(0), hbm(addresses["total"]))
    for source, destination in (("text", "scratch"), ("scratch", "copy")):
        transfer(asm, hbm(addresses[source]), vmem(0))
        transfer(asm, vmem(0), hbm(addresses[destination]))
    with asm.bundle() as bundle:
        bundle.s1.halt()
    return {1: asm.assemble()}


CONSTANT = np.arange(8, dtype=np.int32) - 4
EXECUTABLE = Executable(TINY, "a sum and a copy", (
    BufferSpec("number", Role.INPUT, Plain((2, 4), "i4")),
    BufferSpec("total", Role.OUTPUT, Plain((8,), "i4")),
    BufferSpec("constant", Role.CONSTANT, Plain((8,), "i4"), CONSTANT),
    BufferSpec("scratch", Role.SCRATCH, Plain((32,), "u1")),
    BufferSpec("text", Role.INPUT, Plain((32,), "u1")),
    BufferSpec("copy", Role.OUTPUT, Plain((4, 4), "f2")),
), link, 0)
NUMBER = np.zeros((2, 4), np.int32)
TEXT = np.zeros(32, np.uint8)


def test_buffers_of_every_role_and_any_type(device: Device) -> None:
    rng = np.random.default_rng(SEED)
    free = device.free_bytes
    for _ in range(3):
        number = rng.integers(-99, 99, (2, 4), np.int32)
        text = rng.integers(0, 256, 32, np.uint8)
        total, copy = device.execute(EXECUTABLE, number, text)
        assert (total.dtype, total.shape, copy.dtype, copy.shape) == (
            np.int32, (8,), np.float16, (4, 4))
        np.testing.assert_array_equal(total, number.reshape(-1) + CONSTANT)
        np.testing.assert_array_equal(copy.reshape(-1).view(np.uint8), text)
    assert list(device.last_run) == [1]
    assert device.free_bytes == free


def test_programs_are_loaded_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    backend = device._backend
    assert backend is not None
    load = backend.load

    def observed(programs: Mapping[int, Program], at: int) -> None:
        loads.extend(programs)
        load(programs, at)

    monkeypatch.setattr(backend, "load", observed)
    a, b = np.ones((9, 4), np.float32), np.ones((4, 4), np.float32)

    def loaded() -> list[int]:
        loads.clear()
        device.matmul(a, b)
        return sorted(loads)

    assert [loaded(), loaded(), loaded()] == [[0, 1], [], []]
    # Another executable, on one core; its own program is kept too.
    device.execute(EXECUTABLE, NUMBER, TEXT)
    assert loads == [1]
    assert [loaded(), loaded()] == [[1], []]
    # A buffer moves the operands.
    buffer = device.allocate(16)
    assert [loaded(), loaded()] == [[0, 1], []]
    device.free(buffer)
    # A program of the user may do anything; so may have one that a reset ended.
    device.run({1: HALT})
    assert [loaded(), loaded()] == [[0, 1], []]
    device.reset()
    assert [loaded(), loaded()] == [[0, 1], []]
    device.load(0, HALT)
    assert [loaded(), loaded()] == [[0], []]


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((HALT,), TypeError, "executable must be an Executable, not"),
    ((EXECUTABLE,), ValueError, "must be given 2 arrays \\(number, text\\), not 0"),
    ((EXECUTABLE, [1], TEXT), TypeError, "number must be a numpy array, not list"),
    ((EXECUTABLE, np.ma.masked_array(NUMBER, mask=True), TEXT), TypeError,
     "number must be a numpy array, not MaskedArray"),
    ((EXECUTABLE, NUMBER.astype(np.int64), TEXT), TypeError,
     "number must be of dtype int32, not int64"),
    ((EXECUTABLE, NUMBER, TEXT[1:]), ValueError,
     r"text must be of shape \(32,\), not \(31,\)"),
])
def test_bad_arguments_are_named(arguments: tuple[Any, ...], error: type[Exception],
                                 message: str) -> None:
    with (Device.open("tiny", backend="golden") as device,
          pytest.raises(error, match=message)):
        device.execute(*arguments)


def test_an_executable_of_another_chip_is_refused() -> None:
    with (Device.open("small", backend="golden") as device,
          pytest.raises(ValueError, match=r"must be compiled for small, not tiny$")):
        device.execute(EXECUTABLE, NUMBER, TEXT)
    other = Config.preset("tiny", smem_words=512, imem_bundles=1024)
    with (Device.open(other, backend="golden") as device,
          pytest.raises(ValueError, match="compiled for a device with smem_words=512, "
                                          "imem_bundles=1024, not smem_words=256, imem_")):
        device.execute(EXECUTABLE, NUMBER, TEXT)


def test_progress_must_be_a_flag_or_callable() -> None:
    with (Device.open("tiny", backend="golden") as device,
          pytest.raises(TypeError, match="progress must be True, False or callable, not 1")):
        device.execute(EXECUTABLE, NUMBER, TEXT, progress=1)  # type: ignore[arg-type]


def test_progress_is_called() -> None:
    calls: list[int] = []
    with Device.open("tiny", backend="golden") as device:
        device.execute(EXECUTABLE, NUMBER, TEXT, progress=lambda: calls.append(1))
    assert calls


def test_too_little_memory_and_a_closed_device_are_named() -> None:
    with Device.open("tiny", backend="golden") as device:
        device.allocate(device.free_bytes - 100)
        with pytest.raises(MemoryError, match="a sum and a copy needs 192 bytes of HBM, 96 of"):
            device.execute(EXECUTABLE, NUMBER, TEXT)
    with pytest.raises(RuntimeError, match="device is closed"):
        device.execute(EXECUTABLE, NUMBER, TEXT)


def test_the_last_run_is_forgotten_when_the_next_fails_or_has_nothing_to_do(
        device: Device) -> None:
    one = np.ones((4, 4), np.float32)
    for nothing in (one[:0], one[:, :0]):
        device.matmul(one, one)
        assert device.last_run
        device.matmul(nothing, one[:nothing.shape[1]])
        assert device.last_run == {}
    device.matmul(one, one)
    taken = device.allocate(device.free_bytes - 256)
    with pytest.raises(MemoryError, match=r"a product of \(4, 4\) and \(4, 4\) and a product of"):
        device.dense(one, [Dense(one, relu=True)] * 2)
    device.free(taken)
    assert device.last_run == {}


def test_a_fault_frees_the_buffers(device: Device) -> None:
    bad = Executable(TINY, "a fault", EXECUTABLE.buffers,
                     lambda addresses: {0: assemble("{ pop.pop v1 }", TINY)}, 0)
    free = device.free_bytes
    with pytest.raises(CoreFaultError, match="core 0 stopped with fault FIFO_UNDERFLOW"):
        device.execute(bad, NUMBER, TEXT)
    assert device.free_bytes == free
    assert device.last_run == {}
    total, _ = device.execute(EXECUTABLE, NUMBER, TEXT)
    np.testing.assert_array_equal(total, CONSTANT)
