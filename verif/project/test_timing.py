"""The timing diagrams of docs/core.md are those of the RTL."""

import pathlib

import pytest

from hdl.config import Config
from tools.docs import timing
from tools.docs.timing import DIAGRAMS, PATH, blocks, write


def test_diagrams_are_those_of_the_rtl(monkeypatch: pytest.MonkeyPatch,
                                       tmp_path: pathlib.Path) -> None:
    page = PATH.read_text(encoding="utf-8")
    written = tmp_path / PATH.name
    written.write_text(write(page, dict.fromkeys(DIAGRAMS, "    none\n")), encoding="utf-8")
    assert blocks(written.read_text(encoding="utf-8")) == dict.fromkeys(DIAGRAMS, "    none\n")
    monkeypatch.setattr(timing, "PATH", written)
    timing.main()
    assert written.read_text(encoding="utf-8") == page, "run `make docs`"


def test_latencies_in_the_diagrams() -> None:
    # The columns of a diagram are cycles: what the text of the page says about them.
    def cycles(diagram: str, label: str) -> list[tuple[int, str]]:
        lines = blocks(PATH.read_text(encoding="utf-8"))[diagram].splitlines()
        [header] = [line for line in lines if line.startswith("    cycle ")]
        [row] = [line for line in lines if line.startswith(f"    {label} ")]
        start = header.index("  0 ")
        cells = [row[at:at + 3].strip() for at in range(start, len(row), 3)]
        return [(cycle, cell) for cycle, cell in enumerate(cells) if cell]

    issue = cycles("branch", "issue")
    assert [bundle for _, bundle in issue] == ["0", "1", "1", "1", "2"]
    assert [cycle for cycle, _ in issue] == [2, 3, 4, 5, 6]
    [(load, _), (add, _), (store, _), _] = cycles("load_use", "issue")
    assert (add - load, store - add) == (3, 4)
    assert cycles("load_use", "load writes") == [(add, "v1")]
    assert cycles("load_use", "slot v0 writes") == [(store, "v2")]
    last_result = cycles("push_pop", "result row leaves")[-1][0]
    assert cycles("push_pop", "pop writes") == [(last_result + 1, "v4")]
    config = Config.preset("tiny")
    first_row = cycles("push_pop", "activation row enters")[0][0]
    used = cycles("push_pop", "issue")[4][0]
    assert used - first_row == config.sublanes + config.array_latency == 15
    issue = cycles("semaphore", "issue")
    assert issue[0][0] == cycles("semaphore", "host adds 1 to sem1")[-1][0] + 1
