"""The block diagram is what its source draws."""

from xml.etree import ElementTree

from sim import diagram


def test_committed_diagram_is_what_its_source_draws():
    assert diagram.PATH.read_text(encoding="utf-8") == diagram.draw(), (
        "run `make pictures`")


def test_diagram_shows_every_step_of_the_datapath_in_order():
    root = ElementTree.fromstring(diagram.draw())
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert diagram.STAGES == ("multiply", "compare", "align", "add", "normalize", "round")
    shown = [text for text in texts if text in diagram.STAGES]
    # A lane rounds too.
    assert tuple(shown[shown.index("multiply"):]) == diagram.STAGES
