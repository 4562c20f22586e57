"""Runs the cocotb benches as tests, and checks that they can fail."""

import re
from importlib.metadata import version

import pytest

from verif.benches.axi.channels import VERSION
from verif.benches.runner import BENCHES, Bench, build, check, design, run

pytestmark = pytest.mark.slow

COVERED = ("mac_cell-tiny-1", "mac_cell-tiny-4", "sequencer-tiny-2", "xlu-tiny-2", "vpu-tiny-2",
           "hbm_port-tiny-2", "control-tiny-2", "core-small-2", "chip-small-2")
"""Benches that only ``make cocotb`` runs. Pytest's tests of these units take less time:

- in Verilog of the same size, those of the cell, at all depths (``hdl/mxu/test_cell.py``), and, at
  `tiny`, of the sequencer, the cross-lane unit and the vector unit (``hdl/core/test_sequencer.py``,
  ``hdl/xlu/test_xlu.py``, ``hdl/vpu/test_vpu.py``);
- in Verilog, with a quarter of the vector memory, those of the core at `small`
  (``hdl/core/test_core.py``);
- in Amaranth's simulator, those of the AXI ports at `tiny` (``hdl/axi/test_axi.py``,
  ``hdl/chip/test_registers.py``), whose benches at `small` simulate Verilog;
- with kernels, those of the chip at `small` (``sim/models/test_chip.py``): random transfers of
  both cores with signals, contention for a vector memory, refused transfers, resets. The bench at
  `tiny` simulates Verilog."""


# Large designs come last in the list, and take longest; each has a process of its own.
@pytest.mark.parametrize("bench", [
    pytest.param(bench, id=str(bench), marks=pytest.mark.xdist_group(str(bench)))
    for bench in reversed(BENCHES) if str(bench) not in COVERED])
def test_bench_passes(bench: Bench) -> None:
    assert len(run(bench)) >= 7


def test_benches_that_are_left_out_exist() -> None:
    assert {*COVERED} < {str(bench) for bench in BENCHES}


def test_channels_of_the_installed_library_are_quickened() -> None:
    assert version("cocotbext-axi") == VERSION


def test_failure_names_bench_seed_and_tests() -> None:
    """The bench fails for a cell whose results come a cycle later than the bench expects."""
    later = BENCHES[1]
    told = Bench("mac_cell", later.preset, later.mac_latency + 1)
    with pytest.raises(RuntimeError, match=re.escape(f"bench {told}, seed 77: ")) as caught:
        check(told, build(later, design(later)), seed=77)
    assert "  directed_sums: " in str(caught.value)
    assert "  random_traffic: " in str(caught.value)


def test_build_error_shows_what_verilator_says() -> None:
    bench = BENCHES[0]
    broken = design(bench)
    broken.sources["mac_cell"] = broken.sources["mac_cell"].replace("endmodule", "endmodul", 1)
    with pytest.raises(RuntimeError, match="syntax error") as caught:
        build(bench, broken)
    assert str(caught.value).startswith(f"{bench} was not built")
