"""What `make soak` reports."""

from dataclasses import replace

import pytest

from verif.system.soak import Usage, grown, main

BEFORE = Usage(hbm_bytes=960, arrays=3, programs=3, files=7, threads=4, resident_bytes=200 << 20)


@pytest.mark.parametrize("name", ["hbm_bytes", "arrays", "programs", "files", "threads"])
def test_any_growth_is_a_leak(name: str) -> None:
    value = getattr(BEFORE, name)
    assert grown(BEFORE, replace(BEFORE, **{name: value + 1})) == {name: (value, value + 1)}
    assert grown(BEFORE, replace(BEFORE, **{name: value - 1})) == {}


def test_the_process_may_grow_by_less_than_a_leak_of_each_step_would_take() -> None:
    for megabytes, leaks in ((3, False), (5, True)):
        after = replace(BEFORE, resident_bytes=BEFORE.resident_bytes + (megabytes << 20))
        assert (grown(BEFORE, after) != {}) is leaks


def test_too_few_steps_are_refused(monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["soak", "--count", "4"])
    with pytest.raises(SystemExit):
        main()
    assert "--count must be at least 100, not 4" in capsys.readouterr().err
