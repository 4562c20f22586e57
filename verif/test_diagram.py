"""The block diagram is what its source draws."""

from xml.etree import ElementTree

from hdl.config import PRESETS
from sim import core, diagram


def shown() -> list[str]:
    root = ElementTree.fromstring(diagram.draw())
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_committed_diagram_is_what_its_source_draws():
    assert diagram.PATH.read_text(encoding="utf-8") == diagram.draw(), (
        "run `make pictures`")


def test_diagram_shows_every_step_of_the_datapath_in_order():
    texts = shown()
    assert diagram.STAGES == ("multiply", "compare", "align", "add", "normalize", "round")
    stages = [text for text in texts if text in diagram.STAGES]
    # A lane rounds too.
    assert tuple(stages[stages.index("multiply"):]) == diagram.STAGES


def test_diagram_shows_every_grid_of_tiles_as_a_kernel():
    assert shown().count("tile kernel") == len(core.core_grids(PRESETS["tiny"]))


def test_diagram_shows_the_units_of_the_core_and_their_sizes():
    texts = shown()
    for unit in ("Sequencer", "Vector unit", "Cross-lane unit", "Matrix unit", "w feeder",
                 "x feeder", "collector", "counters"):
        assert texts.count(unit) == 1, unit
    config = PRESETS["v2"]
    assert f"{config.imem_bundles:,} bundles of 288 bits" in texts
    assert texts.count(f"{config.smem_words:,} words") == 2  # vector memory has as many registers
    assert config.smem_words == config.vmem_words
    assert f"{config.sublanes * config.lanes:,} elements" in texts
