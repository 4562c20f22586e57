"""The register files: the variant for FPGAs is proved equal to the behavioural one."""

import pytest

from hdl.core.decode import SCALAR_PORTS
from hdl.core.scalar import SCALAR_WRITERS
from hdl.target import Target
from hdl.vpu.registers import RegisterFile
from verif.hdl.equivalence import prove, verilog_of


def prove_banks(reads: int, writes: int, change: tuple[str, str] | None = None) -> None:
    """Prove that the file for ECP5, with ``change`` to its Verilog, equals the behavioural one.

    One bit of the registers is enough: the ports move all bits alike.
    """
    ports = reads, writes, 1
    wanted = verilog_of(RegisterFile, *ports)
    found = verilog_of(RegisterFile, *ports, target=Target.ECP5)
    assert "newest" in found
    assert "newest" not in wanted
    if change is not None:
        assert change[0] in found
        found = found.replace(*change, 1)
    component = RegisterFile(*ports)
    component._MustUse__used = True
    prove(component, wanted, found, held=[f"source_{i}" for i in range(reads)])


@pytest.mark.parametrize(("reads", "writes"), [
    (9, 4), (len(SCALAR_PORTS) + 1, len(SCALAR_WRITERS))])
def test_banks_equal_the_behavioural_file(reads: int, writes: int) -> None:
    prove_banks(reads, writes)


def test_a_wrong_bank_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_banks(1, 2, ("bank_1[d_1] <= value_1", "bank_1[d_1] <= value_0"))
