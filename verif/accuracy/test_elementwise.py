"""The errors and costs that docs/accuracy.md states."""

import pathlib
import re

import pytest

from verif.accuracy.elementwise import FUNCTIONS, cost, measure

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| [\d,]+ \| ([\d.]+) \|.*\| ([\d.]+) \|$", re.MULTILINE)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_error_is_within_the_bound(kind: str) -> None:
    found = measure(kind, 64, seed=3)
    assert found.operands > 30_000
    assert 0.4 < found.worst <= FUNCTIONS[kind].bound, [f"{word:08X}" for word in found.at]


def test_page_states_what_is_measured() -> None:
    rows = {kind: (int(operations), float(worst), float(bound))
            for kind, operations, worst, bound in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert set(rows) == set(FUNCTIONS)
    for kind, (operations, worst, bound) in rows.items():
        assert operations == cost(kind)
        assert worst <= bound == FUNCTIONS[kind].bound
