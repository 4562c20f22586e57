"""The block diagram is what its source draws."""

import pathlib
import re
from xml.etree import ElementTree

from hdl.chip.chip import Chip
from hdl.config import PRESETS
from sim.driver import backend
from sim.models import core
from tools.pictures import diagram


def shown() -> list[str]:
    root = ElementTree.fromstring(diagram.draw())
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_committed_diagram_is_what_its_source_draws() -> None:
    assert diagram.PATH.read_text(encoding="utf-8") == diagram.draw(), (
        "run `make pictures`")


def test_diagram_shows_every_step_of_the_datapath_in_order() -> None:
    texts = shown()
    assert diagram.STAGES == ("multiply", "compare", "align", "add", "normalize", "round")
    stages = [text for text in texts if text in diagram.STAGES]
    # A lane rounds too.
    assert tuple(stages[stages.index("multiply"):]) == diagram.STAGES


def test_diagram_shows_every_grid_of_tiles_as_a_kernel() -> None:
    assert shown().count("tile kernel") == len(core.core_grids(PRESETS["tiny"]))


def test_diagram_shows_the_units_of_the_core_and_their_sizes() -> None:
    texts = shown()
    for unit in ("Sequencer", "Vector unit", "Cross-lane unit", "Matrix unit", "w feeder",
                 "x feeder", "collector", "counters"):
        assert texts.count(unit) == 1, unit
    config = PRESETS["v2"]
    assert f"{config.imem_bundles:,} bundles of 288 bits" in texts
    assert texts.count(f"{config.smem_words:,} words") == 2  # vector memory has as many registers
    assert config.smem_words == config.vmem_vectors
    assert f"{config.sublanes * config.lanes:,} elements" in texts


def test_diagram_shows_the_chip_its_ports_and_their_sizes() -> None:
    texts = shown()
    config = PRESETS["v2"]
    chip = Chip(config)
    ports = {name.rsplit("_", 1)[0] for name in chip.signature.members if "_" in name}
    labels = {text.removesuffix("_*") for text in texts if text.endswith("_*")}
    assert labels == ports
    for number in range(config.cores):
        assert texts.count(f"Core {number}") == texts.count(f"of core {number}") == 1
    for part in ("arbiters", "request arbiter", "signal arbiter", "vector port"):
        assert texts.count(part) == 1, part
    for part in ("DMA engine", "HBM port", f"{config.hbm_channels} AXI4 masters",
                 f"of {config.channel_bytes} bytes"):
        assert texts.count(part) == config.cores, part
    assert f"a row of {config.row_bytes} bytes" in texts
    assert f"{config.hbm_bytes >> 30} GiB, one space" in texts


def test_diagram_shows_what_a_device_runs_on() -> None:
    texts = shown()
    for name in backend.SIMULATED:
        assert texts.count(name) == 1, name


def test_diagram_names_files_and_folders_that_exist() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    pattern = r"\b(?:hdl|golden|sim)/[\w/.]*\w"
    paths = [path for text in shown() for path in re.findall(pattern, text)]
    assert len(paths) > 10
    assert [path for path in paths if not (root / path).exists()] == []
