"""A host identifies a board's chip, and notices if the board is another one than before."""

import pathlib
from dataclasses import replace

import numpy as np
import pytest

from hdl.chip.registers import CORE_PITCH, address
from hdl.config import Config
from hdl.fpga.protocol import MEMORY_BASE
from sim.errors import BoardError
from sim.models.chip import RegisterError
from sim.serial.chip import SerialChip
from sim.serial.port import open_port
from systolith import Device
from verif.sim.serial.common import FPGA, FakePort, Registers


def opened(port: FakePort, config: Config = FPGA) -> SerialChip:
    return SerialChip(config, "fake", 1_000_000, port, port.clock)


def test_memory_is_that_of_the_board() -> None:
    with opened(FakePort(), Config.preset("fpga")) as chip:
        assert chip.config == FPGA


def test_words_of_any_number_are_written_and_read() -> None:
    rng = np.random.default_rng(3)
    with opened(FakePort()) as chip:
        rows = rng.integers(0, 1 << 32, (140, 4), np.uint32)
        chip.write_hbm(9, rows)
        assert np.array_equal(chip.read_hbm(9, 140), rows)
        assert chip.read_hbm(0, 0).shape == (0, 4)
        chip.write(0x104, rows[:100].reshape(-1), fixed=True)
        assert chip.read(0x104, 300, fixed=True).tolist() == [rows[99, 3]] * 300


@pytest.mark.parametrize(("config", "found", "message"), [
    (FPGA, Config.preset("tiny"), "holds tiny, not fpga: SUBLANES 2 instead of 1, CORES 2 instead"),
    (Config.preset("tiny"), FPGA, "holds fpga, not tiny: "),
    (replace(FPGA, smem_words=64), FPGA,
     "holds fpga, not the given configuration: SMEM_WORDS 1024 instead of 64"),
    (FPGA, replace(FPGA, array=2), "holds another chip, not fpga: ARRAY 2 instead of 4")])
def test_another_chip_is_named(config: Config, found: Config, message: str) -> None:
    port = FakePort(Registers(found))
    with pytest.raises(BoardError, match=f"wrong bitstream: the board at fake {message}"):
        opened(port, config)
    assert port.closed


@pytest.mark.parametrize(("register", "value"), [("ID", 0x12345678), ("VERSION", 0x50000)])
def test_what_is_no_chip_is_named(register: str, value: int) -> None:
    target = Registers()
    target.fixed[address(register)] = value
    with pytest.raises(BoardError, match="wrong bitstream: the chip of the board at fake must be"):
        opened(FakePort(target))


def test_another_rate_is_named() -> None:
    port = FakePort(baud=1_000_000)
    port.board_baud = 115_200
    with pytest.raises(BoardError, match="wrong baud rate: the board at fake answers at 115200 "
                                         "baud, not at 1000000; open it with baud=115200"):
        opened(port)


def test_power_cycle_is_noticed_by_the_next_read() -> None:
    port = FakePort()
    with opened(port) as chip:
        chip.write_hbm(0, np.ones((1, 4), np.uint32))
        port.target.power_cycle()
        with pytest.raises(BoardError, match=r"has lost its state since .*: open the device"):
            chip.read_hbm(0, 1)
        with pytest.raises(BoardError, match="has lost its state"):
            chip.write_hbm(0, np.ones((1, 4), np.uint32))
    with opened(port) as chip:
        assert not chip.read_hbm(0, 1).any()


def test_refused_access_names_its_register() -> None:
    with opened(FakePort()) as chip:
        last = 2 * CORE_PITCH - 4
        with pytest.raises(RegisterError, match="write of 0x6 to CONTROL of core 1 was refused"):
            chip.write(last, [5, 6])
        with pytest.raises(RegisterError, match="read of CONTROL of core 1 was refused"):
            chip.read(last, 2)
        with pytest.raises(RegisterError, match="was refused"):
            chip.read(MEMORY_BASE + FPGA.hbm_bytes, fixed=True)


def test_port_that_does_not_exist_is_named(tmp_path: pathlib.Path) -> None:
    missing = str(tmp_path / "ttyUSB7")
    with pytest.raises(BoardError, match=f"serial port {missing} cannot be opened at 115200 baud"):
        open_port(missing, 115_200)


def test_part_of_a_row_is_written_with_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    port = FakePort()
    monkeypatch.setattr("sim.serial.chip.open_port", lambda name, baud: port)
    with Device.open("fpga", backend="serial", port="fake") as device:
        other, buffer = device.allocate(5), device.allocate(100)
        device.copy_in(other, np.full(5, 7, np.uint8))
        device.copy_in(buffer, np.arange(25, dtype=np.uint32))
        port.target.writes.clear()
        device.copy_in(buffer, np.array([0xAB], np.uint8), 17)
        assert [place for place, _ in port.target.writes] == [
            MEMORY_BASE + buffer.address + 16 + at for at in (0, 4, 8, 12)]
        assert device.copy_out(buffer, np.uint32, 6).tolist() == [0, 1, 2, 3, 0xAB04, 5]
        assert device.copy_out(other, np.uint8, 5).tolist() == [7] * 5
