"""The tool that mutates the RTL: drawing, applying, reverting, judging, reporting."""

import ast
import importlib
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from amaranth.lib import wiring

from verif.benches.runner import BENCHES
from verif.mutation import mutate
from verif.mutation.mutate import (
    BLOCKS,
    CONFIGS,
    ROOT,
    Mutant,
    Result,
    Verdict,
    applied,
    designs,
    draw,
    find_mutants,
)

SOURCE = dedent('''\
    """A block."""
    LIMIT = 3


    class Block:
        def __init__(self, width):
            self.width = width + 1

        def elaborate(self, platform):
            """Adds 1 & 2."""
            m = Module()
            step = Signal(name=f"step_{4 + 4}")
            m.d.comb += [
                a.eq(b & ~c),
                d.eq(e[2:5]),
            ]
            with m.If(a == d):
                m.d.sync += f.eq(f + LIMIT)
            return m
    ''')

WANTED = {
    ("& to |", "a.eq(b | ~c)"), ("right operand dropped", "a.eq((b))"),
    ("left operand dropped", "a.eq((~c))"), ("~ dropped", "a.eq(b & (c))"),
    ("stuck at 0", "a.eq(0)"), ("stuck at 1", "a.eq(1)"),
    ("slice shifted", "d.eq(e[(2) + 1:(5) + 1])"), ("stuck at 0", "d.eq(0)"),
    ("stuck at 1", "d.eq(1)"), ("number + 1", "d.eq(e[3:5])"), ("number - 1", "d.eq(e[1:5])"),
    ("number + 1", "d.eq(e[2:6])"), ("number - 1", "d.eq(e[2:4])"),
    ("== to !=", "with m.If(a != d):"), ("condition negated", "with m.If((a == d) == 0):"),
    ("condition dropped", "with m.If(1):"), ("+ to -", "m.d.sync += f.eq(f - LIMIT)"),
    ("stuck at 0", "m.d.sync += f.eq(0)"), ("stuck at 1", "m.d.sync += f.eq(1)"),
    ("a cycle early", "m.d.comb += f.eq(f + LIMIT)"),
    ("a cycle late", "m.d.sync += a.eq(b & ~c)"), ("a cycle late", "m.d.sync += d.eq(e[2:5])"),
}


def changed_lines(mutant: Mutant, text: str) -> list[str]:
    before = text.splitlines()
    return [line.strip().rstrip(",") for line in mutant.apply(text).splitlines()
            if line not in before]


def test_every_kind_of_mutant_is_found_in_hardware_and_nowhere_else() -> None:
    mutants = find_mutants("hdl/block.py", SOURCE)
    assert len(mutants) == len(set(mutants))
    found = {(mutant.kind, changed_lines(mutant, SOURCE)[-1]) for mutant in mutants}
    assert found == WANTED


def test_a_late_assignment_leaves_the_others_in_time() -> None:
    (mutant,) = (mutant for mutant in find_mutants("hdl/block.py", SOURCE)
                if mutant.kind == "a cycle late" and mutant.line == 14)
    assert mutant.apply(SOURCE).splitlines()[12:17] == [
        "        m.d.comb += [", "            *(),", "            d.eq(e[2:5]),", "        ]",
        "        m.d.sync += a.eq(b & ~c)"]


def test_text_beyond_ascii_does_not_shift_mutants() -> None:
    text = SOURCE.replace('"""Adds 1 & 2."""', '"""a ≠ b → c"""; x.eq("≠" , 7 & y)')
    (mutant,) = (mutant for mutant in find_mutants("hdl/block.py", text)
                if mutant.kind == "& to |" and mutant.line == 10)
    assert '"≠" , 7 | y)' in mutant.apply(text)


def test_mutants_that_begin_at_one_place_are_found_in_the_same_order_by_each_process() -> None:
    """Otherwise, a seed would draw other mutants in another process."""
    terms = [f"a{number}" for number in range(12)]
    text = f"def add(m):\n    m.d.comb += b.eq({' & '.join(terms)})\n"
    kept = [mutant.edits[0].new for mutant in find_mutants("hdl/block.py", text)
            if mutant.kind == "right operand dropped"]
    assert kept == [f"({' & '.join(terms[:count])})" for count in range(11, 0, -1)]


def function_at(line: int, node: ast.AST) -> str:
    """Describe the innermost function or class at a line of a syntax tree."""
    while within := [child for child in getattr(node, "body", [])
                     if isinstance(child, ast.ClassDef | ast.FunctionDef)
                     and child.lineno <= line <= (child.end_lineno or 0)]:
        (node,) = within
    return ast.dump(node)


@pytest.mark.parametrize("block", BLOCKS)
def test_mutants_are_drawn_by_the_seed_and_can_be_parsed(block: str) -> None:
    drawn = draw(block, 60, 1)
    assert drawn == draw(block, 60, 1)
    assert drawn[:20] == draw(block, 20, 1)
    assert set(drawn) != set(draw(block, 60, 2))
    assert len(set(drawn)) == 60
    assert len({mutant.kind for mutant in drawn}) > 12
    texts = {path: (ROOT / path).read_text(encoding="utf-8")
             for path in {mutant.path for mutant in drawn}}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    for mutant in drawn:
        changed = ast.parse(mutant.apply(texts[mutant.path]))
        assert (function_at(mutant.line, changed)
                != function_at(mutant.line, trees[mutant.path])), mutant
        assert mutant.path.startswith(f"hdl/{block}/")


@pytest.mark.parametrize(("block", "count", "message"), [
    ("tpu", 1, "block must be one of axi, chip, core, dma, fpga, link, mxu, vpu, xlu, not 'tpu'"),
    ("dma", 0, "count must be from 1 to [0-9]+, not 0"),
    ("dma", 10**6, "count must be from 1 to [0-9]+, not 1000000")])
def test_wrong_arguments_are_refused(block: str, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(block, count, 1)


def test_each_package_of_the_design_is_a_block_with_tests() -> None:
    packages = {path.parent.name for path in (ROOT / "hdl").glob("*/__init__.py")}
    # This package has no hardware.
    assert packages - {"elaboration"} == set(BLOCKS)
    for block in BLOCKS:
        files = mutate.files(block)
        own = {path.relative_to(ROOT).as_posix() for path in (
            ROOT / "verif" / "hdl" / block).glob("test_*.py")}
        assert own
        assert own == {file for file in files if file.startswith(f"verif/hdl/{block}/")}
        assert len(files) == len(set(files))
        for file in own:
            source = f"hdl/{block}/{Path(file).name.removeprefix('test_')}"
            assert mutate.files(block, source)[0] == file
            assert sorted(mutate.files(block, source)) == sorted(files)
        assert all((ROOT / file.partition("::")[0]).is_file() for file in files)
        benches = {file.rpartition("::")[2] for file in files if "::" in file}
        assert benches <= {f"test_bench_passes[{bench}]" for bench in BENCHES}


def test_pytest_runs_the_files_of_a_block_in_their_order() -> None:
    """Quick tests come first, and those of other folders last."""
    wanted = mutate.files("chip", "hdl/chip/control.py")
    listed = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", *wanted],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [line.partition("::")[0] for line in listed.splitlines() if "::" in line]
    assert [file for file, _ in itertools.groupby(found)] == wanted


def test_a_mutant_is_reverted_also_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "block.py"
    file.write_bytes(SOURCE.encode())
    mutant = find_mutants("block.py", SOURCE)[0]
    with applied(mutant, tmp_path):
        assert file.read_text() == mutant.apply(SOURCE) != SOURCE
    assert file.read_bytes() == SOURCE.encode()
    with pytest.raises(KeyboardInterrupt), applied(mutant, tmp_path):
        raise KeyboardInterrupt
    assert file.read_bytes() == SOURCE.encode()


FAILED = "F\nFAILED verif/hdl/dma/test_limits.py::test_rows - assert 1 == 2\n1 failed in 2s\n"


@pytest.mark.parametrize(("digest", "status", "output", "proof", "result", "noticed"), [
    ("old", 1, FAILED, True, Result.EQUIVALENT, ""),
    (None, 1, FAILED, True, Result.INVALID, ""),
    ("new", 1, FAILED, True, Result.CAUGHT, "test_limits.py::test_rows"),
    ("new", 2, "ERROR verif/hdl/dma/test_dma.py - NameError\n", True, Result.CAUGHT,
     "test_dma.py"),
    ("new", None, "", True, Result.TIMED_OUT, ""),
    ("new", 0, "9 passed in 2s\n", True, Result.EQUIVALENT, ""),
    ("new", 0, "9 passed in 2s\n", False, Result.SURVIVED, "")])
def test_the_result_of_a_mutant(digest: str | None, status: int | None, output: str, proof: bool,
                               result: Result, noticed: str) -> None:
    mutant = find_mutants("hdl/block.py", SOURCE)[0]
    tested: list[int] = []

    def test() -> mutate._Run:
        tested.append(1)
        return mutate._Run(status, output)

    written = mutate._Run(0, f"{digest}\n") if digest else mutate._Run(1, "NameError: x\n")
    verdict = mutate.judge(mutant, ["old"], lambda: written, test, lambda: proof)
    assert (verdict.result, verdict.noticed) == (result, noticed)
    assert len(tested) == (digest == "new")


def test_digests_cover_all_components_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of a component that is in no Verilog would count as equivalent."""
    seen: set[type] = set()
    make = wiring.Component.__init__

    def seeing(self: wiring.Component, *arguments: Any) -> None:
        seen.add(type(self))
        make(self, *arguments)

    monkeypatch.setattr(wiring.Component, "__init__", seeing)
    list(designs("link"))
    files = {f"hdl.link.{file.stem}" for file in (ROOT / "hdl" / "link").glob("[a-z]*.py")}
    components = {found for name in files for found in vars(importlib.import_module(name)).values()
                  if isinstance(found, type) and issubclass(found, wiring.Component)
                  and found.__module__ == name}
    assert len(components) > 10
    assert components <= seen


def test_digests_end_with_the_first_that_differs(capsys: pytest.CaptureFixture[str],
                                                 tmp_path: Path) -> None:
    def printed(*expected: str) -> list[str]:
        assert mutate.main(["mxu", "--digest", *expected]) == 0
        return capsys.readouterr().out.split()

    file = tmp_path / "verilog.json"
    assert mutate.main(["mxu", "--verilog", str(file)]) == 0
    digests = [mutate._digest_of(sources) for sources in json.loads(file.read_text())]
    assert len(set(digests)) == len(digests) == len(CONFIGS)
    assert printed(*digests) == digests
    assert printed(digests[0], "other") == digests
    assert printed("other", digests[1]) == digests[:1]


def test_only_a_mutant_that_behaves_alike_is_proved_to(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "build", "__pycache__"))
    original = mutate._designs("mxu", root, 60)
    assert len(original) == len(CONFIGS)
    file = root / "hdl" / "mxu" / "mac.py"
    text = file.read_text(encoding="utf-8")
    for old, new, proved in (
            ("product[:-2]", "product[:-1]", True),  # the fraction has no place for this bit
            ("distance[5:].any()", "0", False),
            ("distance[5:].any()", "nothing", False)):  # cannot be elaborated
        assert text.count(old) == 1
        file.write_text(text.replace(old, new), encoding="utf-8")
        assert mutate._proved("mxu", root, 60, original) == proved, new


def test_tests_that_cannot_be_run_are_no_result() -> None:
    mutant = find_mutants("hdl/block.py", SOURCE)[0]
    with pytest.raises(RuntimeError, match="the tests cannot be run: no such file"):
        mutate.judge(mutant, ["old"], lambda: mutate._Run(0, "new"),
                     lambda: mutate._Run(4, "no such file"), lambda: False)


def test_the_report_counts_and_shows_the_survivors(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(SOURCE)
    mutants = find_mutants("block.py", SOURCE)
    results = [Result.CAUGHT, Result.TIMED_OUT, Result.SURVIVED, Result.EQUIVALENT, Result.INVALID]
    verdicts = [Verdict(mutant, result, 1.5, "test_x") for mutant, result in zip(mutants, results,
                                                                              strict=False)]
    text = mutate.report(verdicts, tmp_path)
    assert text.endswith(
        "caught 2 of 3 (1 by the time limit); 1 are equivalent, 1 are no design")
    assert text.count("--- block.py") == 1
    assert f"+++ block.py ({mutants[2].kind})" in text
    assert mutate.line(verdicts[0]).split() == [
        "caught", "1.5", "s", f"block.py:{mutants[0].line}", *mutants[0].kind.split(), "test_x"]


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    """Otherwise a simulation that hangs would continue after its mutant's test."""
    script = ("import subprocess, sys; print('begins', flush=True);"
              "subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])")
    run = mutate._run(["-c", script], tmp_path, 2)
    assert run.status is None
    assert run.output == "begins\n"
    assert mutate._run(["-c", "print(3)"], tmp_path, 60) == mutate._Run(0, "3\n")
