"""The pads of a board with SDRAM and SPI, in the netlist of `Board` around a black box."""

import re

import pytest
from amaranth import Instance, Module
from amaranth.back import rtlil
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.fpga.board import CRYSTAL_HZ, Board
from hdl.fpga.bridge import spi_members
from hdl.fpga.sdram import SdramPins

_CELL = re.compile(r"^ *cell \\?(\S+) \\?(\S+)\n((?: *(?:parameter|connect) .*\n)*)", re.MULTILINE)
_PORT = re.compile(r"connect \\(\S+) (.*)")
_WIRE = re.compile(r"^ *connect \\(\S+) (\S.*)$", re.MULTILINE)


class System(wiring.Component):
    """A black box with the ports of a `SerialSystem` with SDRAM and SPI."""

    def __init__(self) -> None:
        super().__init__({"line_in": In(1), "line_out": Out(1), "interrupt": Out(1),
                          "sdram": Out(SdramPins()), **spi_members()})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.system = Instance("system", **{
            f"{'o' if member.flow is Out else 'i'}_{'_'.join(map(str, path))}": signal
            for path, member, signal in self.signature.flatten(self)})
        return m


def plain(value: str) -> str:
    r"""A value of RTLIL, with ``name`` instead of ``\name [0]``."""
    return value.removeprefix("\\").removesuffix(" [0]")


@pytest.fixture(scope="module")
def netlist() -> str:
    board = Board(Config.preset("fpga", hbm_bytes=32 << 20), CRYSTAL_HZ, None, sdram=True)
    board._make = System
    [top] = [text for text in rtlil.convert(board).split("\nmodule ") if "ODDRX1F" in text]
    return re.sub(r"^ *attribute .*\n", "", top, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def cells(netlist: str) -> dict[str, tuple[str, dict[str, str]]]:
    """By name of cell: its type, and what its ports are connected to."""
    return {name: (kind, {port: plain(value) for port, value in _PORT.findall(ports)})
            for kind, name, ports in _CELL.findall(netlist)}


def test_clock_of_the_sdram_is_inverted(cells: dict[str, tuple[str, dict[str, str]]]) -> None:
    [ports] = [ports for kind, ports in cells.values() if kind == "ODDRX1F"]
    assert ports == {"SCLK": "clk25", "RST": "1'0", "D0": "1'0", "D1": "1'1", "Q": "sdram_clk"}


def test_outputs_have_registers_in_their_pads(cells: dict[str, tuple[str, dict[str, str]]]) -> None:
    registers = {name: ports for name, (kind, ports) in cells.items() if kind == "OFS1P3DX"}
    assert all((ports["SCLK"], ports["SP"], ports["CD"]) == ("clk25", "1'1", "1'0")
               for ports in registers.values())
    command = "system__sdram__command"
    for pin, level in {"we": command, "cas": f"{command} [1]", "ras": f"{command} [2]",
                       "cs": f"{command} [3]", "clk_en": "system__sdram__enable"}.items():
        ports = registers[f"sdram_{pin}_0"]
        assert (ports["D"], ports["Q"]) == (level, f"sdram_{pin}")
    for pin, name, width in (("ba", "bank", 2), ("a", "address", 13), ("dqm", "mask", 2)):
        assert [registers[f"sdram_{pin}_{bit}"]["D"] for bit in range(width)] == [
            plain(f"system__sdram__{name} [{bit}]") for bit in range(width)]
    assert len(registers) == 5 + 2 + 13 + 2 + 2 * 16


def test_data_pins_are_driven_while_the_controller_asks(
        cells: dict[str, tuple[str, dict[str, str]]]) -> None:
    inverted = {ports["Y"]: ports["A"] for kind, ports in cells.values() if kind == "$not"}
    for bit in range(16):
        out, released, read, pin = (
            cells[f"sdram_{name}_{bit}"] for name in ("data", "released", "in", "dq"))
        assert out[1]["D"] == plain(f"system__sdram__data [{bit}]")
        assert inverted[released[1]["D"]] == "system__sdram__drive"
        assert pin[0] == "BB"
        assert pin[1]["B"] == plain(f"sdram_dq [{bit}]")
        assert (pin[1]["I"], pin[1]["T"]) == (out[1]["Q"], released[1]["Q"])
        assert read[0] == "IFS1P3DX"
        assert (read[1]["SCLK"], read[1]["D"]) == ("clk25", pin[1]["O"])


def test_line_is_connected_as_spi(netlist: str) -> None:
    wires = {name: plain(value) for name, value in _WIRE.findall(netlist)}
    for name in ("line_in", "line_out", "spi_clock", "spi_select"):
        assert wires[f"system__{name}"] == name
