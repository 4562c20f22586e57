"""A device on the serial line of a simulated board with its UART, and errors of the line."""

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import systolith
from golden.fpga.sdram import Rule
from golden.mxu import matmul
from hdl.config import Config
from hdl.isa import Fault
from sim.asm.text import assemble
from sim.driver.device import DEFAULT_BAUD
from sim.errors import BoardError, CoreFaultError, DeviceTimeoutError
from systolith import Device
from tools.fpga.board import HBM_BYTES, SDRAM_BYTES, SimulatedBoard
from verif.sim.driver.common import assert_same_bits, operands

# The model of the whole system needs seconds for the bytes of a product.
pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[3]
FPGA = Config.preset("fpga", hbm_bytes=HBM_BYTES)


@pytest.fixture
def board() -> Iterator[SimulatedBoard]:
    with SimulatedBoard(FPGA).start() as found:
        yield found


def opened(board: SimulatedBoard, baud: int = DEFAULT_BAUD) -> Device:
    return Device.open("fpga", backend="serial", port=board.port, baud=baud)


def check_product(device: Device) -> None:
    a, b = operands(np.random.default_rng(4), 3, 5, 4, False)
    assert_same_bits(device.matmul(a, b), matmul(a, b, 4))


def test_readme_session_has_the_bits_of_the_golden_model(board: SimulatedBoard) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [session] = [text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
                 if "serial" in text]
    a, b = operands(np.random.default_rng(1), 300, 200, 150, False)
    names: dict[str, Any] = {"Device": Device, "a": a, "b": b}
    exec(session.replace("/dev/ttyUSB0", board.port), names)
    assert_same_bits(names["c"], matmul(a[:16, :16], b[:16, :16], 4))


def test_programs_memories_and_functions(board: SimulatedBoard) -> None:
    with opened(board) as device:
        assert device.config == FPGA
        assert device.model is None
        rng = np.random.default_rng(9)
        vectors = rng.integers(0, 1 << 32, (5, 1, 4), np.uint32)
        device.write_vmem(0, 3, vectors)
        assert np.array_equal(device.read_vmem(0, 3, 5), vectors)
        device.write_smem(0, 8, [1, 2, 3])
        device.write_scalars(0, 5, [40, 2])
        assert device.read_smem(0, 8, 3).tolist() == [1, 2, 3]
        counts = device.run({0: assemble("{ s0.add s7, s5, s6 | s1.halt }", FPGA)})[0]
        assert device.read_scalars(0)[:8].tolist() == [0, 0, 0, 0, 0, 40, 2, 42]
        assert counts["cycles"] == sum(count for name, count in counts.items() if name != "cycles")
        buffer = device.allocate(100)
        device.copy_in(buffer, np.arange(25, dtype=np.uint32))
        device.copy_in(buffer, np.array([0xAB], np.uint8), 17)
        assert device.copy_out(buffer, np.uint32, 6).tolist() == [0, 1, 2, 3, 0xAB04, 5]
        double = systolith.jit(lambda x: x + x)
        assert np.array_equal(double(vectors[0, 0].view(np.int32), device=device),
                              2 * vectors[0, 0].view(np.int32))


def test_faults_and_timeouts_are_those_of_the_golden_model(board: SimulatedBoard) -> None:
    bad = assemble("start: { s0.add s1, s0, -1 } { ld.load v1, s1 } { s1.halt }", FPGA)
    waits = assemble("{ misc.wait sem3, 2 | s1.halt }", FPGA)
    messages = []
    with opened(board) as serial, Device.open(FPGA, backend="golden") as golden:
        for device in (serial, golden):
            with pytest.raises(CoreFaultError) as fault:
                device.run({0: bad})
            with pytest.raises(DeviceTimeoutError) as stuck:
                device.run({0: waits})
            assert stuck.value.stuck
            messages.append((str(fault.value), str(stuck.value)))
            device.signal(0, 3, 2)
            device.wait()
            assert device.read_semaphores(0)[3] == 0
        assert messages[0] == messages[1]
        serial.set_watchdog(0, 1000)
        with pytest.raises(CoreFaultError, match="WATCHDOG"):
            serial.run({0: waits})
        serial.load(0, assemble("again: { s1.jump again }", FPGA))
        serial.start(0)
        calls: list[None] = []
        with pytest.raises(DeviceTimeoutError, match="core 0 runs at bundle 0"):
            serial.wait(cycles=20_000, progress=lambda: calls.append(None))
        assert calls
        before = serial.counters()["cycles"]
        serial.stop()
        assert not serial.running(0)
        serial.reset()
        assert serial.fault(0) is Fault.NONE
        assert serial.counters()["cycles"] > before


def test_noise_changes_no_bit(board: SimulatedBoard) -> None:
    with opened(board) as device:
        board.noise = 3e-4
        check_product(device)
        board.noise = 0
    assert board.damaged > 0


def test_pulled_cable_is_named(board: SimulatedBoard) -> None:
    device = opened(board)
    with pytest.raises(BoardError, match=f"serial port {board.port} cannot be opened"):
        opened(board)
    board.disconnect()
    with pytest.raises(BoardError, match=f"the board at {board.port} does not answer"):
        check_product(device)
    device.close()
    board.connected = True
    device = opened(board)
    board.close()
    with pytest.raises(BoardError, match=f"serial port {board.port} is gone"):
        device.state(0)
    device.close()


def test_wrong_rate_and_wrong_bitstream_are_named(board: SimulatedBoard) -> None:
    with pytest.raises(BoardError, match="answers at 1000000 baud, not at 460800"):
        opened(board, baud=460_800)
    with pytest.raises(BoardError, match="holds fpga, not tiny: SUBLANES 1 instead"):
        Device.open("tiny", backend="serial", port=board.port)
    with opened(board) as device:
        assert not device.running(0)


def test_power_cycle_is_noticed_and_the_board_can_be_opened_again(board: SimulatedBoard) -> None:
    with opened(board) as device:
        device.load(0, assemble("again: { s1.jump again }", FPGA))
        device.start(0)
        board.power_cycle()
        with pytest.raises(BoardError, match="has lost its state since the device was opened"):
            device.wait(seconds=60)
        with pytest.raises(BoardError, match="has lost its state"):
            device.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
    with opened(board) as device:
        check_product(device)


def test_product_and_function_on_a_board_with_an_sdram() -> None:
    with SimulatedBoard(Config.preset("fpga", hbm_bytes=SDRAM_BYTES), sdram=True).start() as board:
        with opened(board) as device:
            assert device.config.hbm_bytes == 32 << 20
            check_product(device)
            double = systolith.jit(lambda x: x + x)
            x = np.arange(24, dtype=np.float32).reshape(4, 6)
            assert np.array_equal(double(x, device=device), 2 * x)
            assert device.model is None
        assert board.violation is Rule.NONE


def test_jax_runs_on_the_board(board: SimulatedBoard) -> None:
    program = "import jax.numpy as jnp; print((jnp.arange(4.0) + 1).tolist())"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "systolith", "SYSTOLITH_CONFIG": "fpga",
             "SYSTOLITH_BACKEND": "serial", "SYSTOLITH_PORT": board.port})
    assert result.stdout == "[1.0, 2.0, 3.0, 4.0]\n", result.stderr
