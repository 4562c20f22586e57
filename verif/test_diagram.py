"""The block diagram is what its source draws."""

from xml.etree import ElementTree

from hdl.mxu.mac import STEPS
from sim import diagram


def test_committed_diagram_is_what_its_source_draws():
    assert diagram.PATH.read_text(encoding="utf-8") == diagram.draw(), (
        "run `python -m sim.diagram`")


def test_diagram_shows_every_step_of_the_datapath_in_order():
    root = ElementTree.fromstring(diagram.draw())
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    names = [step.__name__.lower() for step in STEPS]
    shown = [text.replace(", ", "") for text in texts if text.replace(", ", "") in names]
    # A lane rounds too.
    assert shown[shown.index(names[0]):] == names
