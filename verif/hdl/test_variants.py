"""Components for FPGAs are proved equal to those whose place they take; wrong ones are refused."""

import pytest
from amaranth.lib import wiring

from hdl.config import Config
from hdl.core.decode import SCALAR_PORTS
from hdl.core.scalar import SCALAR_WRITERS
from hdl.dma.interface import QUEUE_DEPTH
from hdl.dma.queue import STAGES, TransferQueue
from hdl.target import Target
from hdl.vpu.registers import RegisterFile
from verif.hdl.equivalence import prove, verilog_of

FPGA = Config.preset("fpga")


def variants(component: wiring.Component, *arguments: object,
             change: tuple[str, str] | None = None) -> tuple[str, str]:
    """Verilog of a component, and of its variant for ECP5, with ``change`` to its text."""
    component._MustUse__used = True  # it only serves for its ports
    wanted = verilog_of(type(component), *arguments)
    found = verilog_of(type(component), *arguments, target=Target.ECP5)
    assert found != wanted
    if change is not None:
        assert change[0] in found
        found = found.replace(*change, 1)
    return wanted, found


def prove_registers(reads: int, writes: int, change: tuple[str, str] | None = None) -> None:
    """One bit of the registers is enough: the ports move all bits alike."""
    component = RegisterFile(reads, writes, 1)
    prove(component, *variants(component, reads, writes, 1, change=change),
          held=[f"source_{i}" for i in range(reads)])


@pytest.mark.parametrize(("reads", "writes"), [
    (9, 4), (len(SCALAR_PORTS) + 1, len(SCALAR_WRITERS))])
def test_banks_equal_the_behavioural_registers(reads: int, writes: int) -> None:
    prove_registers(reads, writes)


def test_a_wrong_bank_of_registers_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_registers(1, 2, ("bank_1[d_1] <= value_1", "bank_1[d_1] <= value_0"))


def prove_queue(change: tuple[str, str] | None = None) -> None:
    component = TransferQueue(FPGA)
    pointers = ["pushed", *(f"{stage}_taken" for stage in STAGES)]
    prove(component, *variants(component, FPGA, change=change),
          registers={name: name for name in pointers}
          | {f"place_{number}": f"places[{number}]" for number in range(QUEUE_DEPTH)})


def test_memory_equals_the_registers_of_the_queue() -> None:
    prove_queue()


def test_a_wrong_place_of_the_queue_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_queue(("issuer_taken[1:0]", "writer_taken[1:0]"))
