"""``make mutate``: makes small changes of a block's RTL, one at a time, and runs the block's tests.

A mutant is the source with one such change. A mutant that no test detects shows something that the
tests do not check. A block is a folder of ``hdl``. The changes are drawn from its syntax tree:

- an operator becomes its neighbour: ``&`` and ``|``, ``+`` and ``-``, ``<`` and ``<=``, ...;
- a number is off by one; a slice is off by one bit;
- a condition is negated, or always true;
- an operand of ``&``, ``|`` or ``~`` is dropped;
- an assignment is stuck at 0 or 1;
- an assignment acts a cycle later (`comb` becomes `sync`) or earlier (`sync` becomes `comb`).

The tests run in a temporary copy of the repository with its own build folder. A mutant counts only
if it changes the block's Verilog. One that no test detects does not count if its Verilog provably
behaves like the original.
"""

import argparse
import ast
import difflib
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from hdl.config import Config
from hdl.link.format import LinkConfig
from hdl.tiles import VerilogLibrary
from verif.mutation.proof import behave_alike

__all__ = ["BLOCKS", "CONFIGS", "Block", "Edit", "Mutant", "Result", "Verdict", "applied",
           "designs", "draw", "files", "find_mutants", "judge", "main", "report"]

ROOT = Path(__file__).resolve().parents[2]
LINKED = Config.preset("tiny", link_bytes=8)
"""Configuration of a chip with links."""
CONFIGS = (Config.preset("tiny"),
           Config.preset("tiny", cores=1, mac_latency=3, issue_cycles=3))
"""Default configurations in which a changed block's Verilog is compared with the original's."""


@dataclass(frozen=True)
class Block:
    """A package of ``hdl``.

    Attributes
    ----------
    components : tuple of str
        ``module:class`` of the components whose Verilog contains everything in the package.
    first : tuple of str
        The quickest test files in ``verif/hdl/BLOCK``; they run before the other files there.
    elsewhere : tuple of str
        Other test files in ``verif``, or single tests, that test the block. They run last.
    configs : tuple of Config or LinkConfig
        Configurations of the components. A mutant counts if the Verilog of one of them differs.
    arguments : tuple
        Further arguments of the components, after the configuration.
    more : tuple
        More components whose Verilog counts: ``module:class``, configuration, and further
        arguments by name.
    """

    components: tuple[str, ...]
    first: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    configs: tuple[Config | LinkConfig, ...] = CONFIGS
    arguments: tuple[int, ...] = ()
    more: tuple[tuple[str, Config, dict[str, Any]], ...] = ()


BLOCKS = {
    "axi": Block(("axi.master:HbmPort", "chip.control:ControlSlave"), ("test_limits.py",),
                 ("hdl/chip/test_registers.py",)),
    "chip": Block(("chip.control:ControlSlave", "chip.node:CoreNode", "chip.chip:Chip"),
                  ("test_wiring.py", "test_coincidences.py", "test_registers.py"),
                  ("hdl/link/test_chips.py",),
                  more=(("chip.chip:Chip", LINKED, {}),)),
    "core": Block(("core.core:Core",), (
        "test_wiring.py", "test_coincidences.py", "test_counters.py", "test_feeder.py",
        "test_sequencer.py"), ("hdl/link/test_chips.py",), more=(
            ("core.core:Core", LINKED, {}),)),
    "dma": Block(("dma.engine:DmaEngine",), ("test_limits.py",), ("hdl/link/test_chips.py",),
                 more=(("dma.engine:DmaEngine", LINKED, {}),)),
    "fpga": Block(("fpga.board:Board",), ("test_fpga.py",), tuple(
                      f"benches/test_cocotb.py::test_bench_passes[{top}-fpga-2]"
                      for top in ("sdram", "serial")),
                  configs=(Config.preset("fpga"),), arguments=(25_000_000, 6_250_000),
                  more=(("fpga.board:Board", Config.preset("fpga"),
                         {"clock_hz": 25_000_000, "baud": None, "sdram": True}),)),
    "link": Block(("link.fabric:Fabric",), (
        "test_router.py", "test_packets.py", "test_link.py", "test_proofs.py"), configs=(
        LinkConfig(payload_bytes=4, depth=8), LinkConfig(payload_bytes=1, depth=4, rate_flits=16)),
        more=tuple((f"link.{name}", LINKED, {})
                   for name in ("egress:Egress", "eject:Ejection", "eject:Arrivals"))),
    "mxu": Block(("mxu.mxu:Mxu",)),
    "vpu": Block(("vpu.vpu:Vpu",), ("test_host_control.py", "test_vpu.py")),
    "xlu": Block(("xlu.xlu:Xlu",), ("test_xlu.py",)),
}
"""The blocks that can be mutated, by the name of their package."""


@dataclass(frozen=True)
class Edit:
    """Replaces ``text[start:end]`` of a file by ``new``."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """A small change of the source that should make a test fail.

    Attributes
    ----------
    path : str
        File, from the root of the repository.
    line : int
        Line of the change.
    kind : str
        Kind of the change, in a few words.
    edits : tuple of Edit
        The edits, in the order of the text; they do not overlap.
    """

    path: str
    line: int
    kind: str
    edits: tuple[Edit, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}"

    def apply(self, text: str) -> str:
        """Returns the file's text with the change."""
        for edit in reversed(self.edits):
            text = text[:edit.start] + edit.new + text[edit.end:]
        return text


class Result(StrEnum):
    """Outcome of a mutant."""

    CAUGHT = "caught"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    INVALID = "invalid"


@dataclass(frozen=True)
class Verdict:
    """A mutant, its result, the seconds that its judgement took, and the first failed test."""

    mutant: Mutant
    result: Result
    seconds: float
    noticed: str = ""


# --- drawing

_SWAPS: dict[type[ast.operator] | type[ast.cmpop], tuple[str, str]] = {
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
}


class _Finder(ast.NodeVisitor):
    """Collects the mutants of a file; they change only functions that add to a `Module` ``m``."""

    def __init__(self, path: str, text: str) -> None:
        self.mutants: list[Mutant] = []
        self._path = path
        # The tree counts columns in bytes.
        self._bytes = text.encode()
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line.encode()))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the positions in the text at which a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[node.end_lineno - 1] + node.end_col_offset
        return len(self._bytes[:start].decode()), len(self._bytes[:end].decode())

    def _source(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._bytes.decode()[start:end]

    def _add(self, node: ast.expr | ast.stmt, kind: str, *edits: Edit) -> None:
        self.mutants.append(Mutant(self._path, node.lineno, kind, edits))

    def _replace(self, node: ast.expr, kind: str, new: str) -> None:
        self._add(node, kind, Edit(*self._span(node), new))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        builds = node.name == "elaborate" or any(
            argument.arg == "m" for argument in node.args.args)
        if builds:
            for statement in node.body:
                _Body(self).visit(statement)
        else:
            for statement in node.body:
                self.visit(statement)


class _Body(ast.NodeVisitor):
    """Collects the mutants within one function."""

    def __init__(self, finder: _Finder) -> None:
        self._f = finder

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings: names of signals are not hardware."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "name":
            self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        """Skip defaults of lambdas, which are not hardware."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions, which are not hardware."""

    def _swap(self, node: ast.expr, left: ast.expr, op: ast.operator | ast.cmpop,
              right: ast.expr) -> None:
        if type(op) not in _SWAPS:
            return
        old, new = _SWAPS[type(op)]
        begin, end = self._f._span(left)[1], self._f._span(right)[0]
        at = self._f._bytes.decode().find(old, begin, end)
        if at >= 0:
            self._f._add(node, f"{old} to {new}", Edit(at, at + len(old), new))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._swap(node, node.left, node.op, node.right)
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            for side, kept in (("right", node.left), ("left", node.right)):
                self._f._replace(node, f"{side} operand dropped", f"({self._f._source(kept)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators,
                                   strict=False):
            self._swap(node, left, op, right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Invert):
            self._f._replace(node, "~ dropped", f"({self._f._source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._f._replace(node, "number + 1", str(node.value + 1))
            if node.value:
                self._f._replace(node, "number - 1", str(node.value - 1))

    def visit_Slice(self, node: ast.Slice) -> None:
        bounds = [bound for bound in (node.lower, node.upper) if bound is not None]
        if bounds and node.step is None:
            self._f._add(bounds[0], "slice shifted", *(
                Edit(*self._f._span(bound), f"({self._f._source(bound)}) + 1")
                for bound in bounds))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            (argument,) = node.args
            if node.func.attr in ("If", "Elif"):
                self._f._replace(argument, "condition negated",
                                 f"({self._f._source(argument)}) == 0")
                self._f._replace(argument, "condition dropped", "1")
            if node.func.attr == "eq":
                for value in (0, 1):
                    if self._f._source(argument) != str(value):
                        self._f._replace(argument, f"stuck at {value}", str(value))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Find mutants of the assignments ``m.d.comb += ...`` and ``m.d.sync += ...``."""
        target = node.target
        if isinstance(target, ast.Attribute) and target.attr in ("comb", "sync"):
            self._retime(node, target)
        self.visit(node.value)

    def _retime(self, node: ast.AugAssign, target: ast.Attribute) -> None:
        late = target.attr == "comb"
        kind = "a cycle late" if late else "a cycle early"
        domain = f"{self._f._source(target.value)}.{'sync' if late else 'comb'}"
        if not isinstance(node.value, ast.List):
            if self._assigns(node.value):
                self._f._add(node, kind, Edit(*self._f._span(target), domain))
            return
        end = self._f._span(node)[1]
        for item in node.value.elts:
            if self._assigns(item):
                moved = f"\n{' ' * node.col_offset}{domain} += {self._f._source(item)}"
                self._f._add(item, kind, Edit(*self._f._span(item), "*()"), Edit(end, end, moved))

    @staticmethod
    def _assigns(node: ast.expr) -> bool:
        return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                and node.func.attr == "eq")


def find_mutants(path: str, text: str) -> list[Mutant]:
    """All mutants of a file, in the order of the text."""
    finder = _Finder(path, text)
    finder.visit(ast.parse(text))
    # Not a set: its order differs between processes, and several mutants can begin at one place.
    return sorted(dict.fromkeys(finder.mutants),
                  key=lambda mutant: (mutant.edits[0].start, mutant.kind))


def draw(block: str, count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Draws different mutants: the same number of each kind, as long as a kind has enough.

    The same arguments and the same source give the same mutants.

    Raises
    ------
    ValueError
        If there is no such block, or it has fewer than ``count`` mutants.
    """
    if block not in BLOCKS:
        raise ValueError(f"block must be one of {', '.join(BLOCKS)}, not {block!r}")
    kinds: dict[str, list[Mutant]] = {}
    for file in sorted((root / "hdl" / block).glob("*.py")):
        path = file.relative_to(root).as_posix()
        for mutant in find_mutants(path, file.read_text(encoding="utf-8")):
            kinds.setdefault(mutant.kind, []).append(mutant)
    total = sum(map(len, kinds.values()))
    if not 0 < count <= total:
        raise ValueError(f"count must be from 1 to {total}, not {count!r}")
    rng = random.Random(f"{block} {seed}")
    queues = [kinds[kind] for kind in sorted(kinds)]
    for queue in queues:
        rng.shuffle(queue)
    drawn: list[Mutant] = []
    while len(drawn) < count:
        rng.shuffle(queues)
        drawn += [queue.pop() for queue in queues if queue]
    return drawn[:count]


# --- judging

@contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[None]:
    """Applies the mutant to the tree at ``root``, and reverts it on exit, also after an error."""
    file = root / mutant.path
    before = file.read_bytes()
    try:
        file.write_text(mutant.apply(before.decode()), encoding="utf-8")
        yield
    finally:
        file.write_bytes(before)


def designs(block: str) -> Iterator[dict[str, str]]:
    """The Verilog of each of the block's components, in all its configurations, by module."""
    found = BLOCKS[block]
    wanted: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (name, (config, *found.arguments), {}) for config in found.configs
        for name in found.components]
    wanted += [(name, (config,), arguments) for name, config, arguments in found.more]
    for name, positional, named in wanted:
        module, component = name.split(":")
        make = getattr(importlib.import_module(f"hdl.{module}"), component)
        yield VerilogLibrary().write(component.lower(), partial(make, *positional, **named))


def _digest_of(sources: dict[str, str]) -> str:
    return hashlib.sha256("".join(sources.values()).encode()).hexdigest()


def _print_digests(block: str, expected: Sequence[str]) -> None:
    """Print digests up to the first that is not expected; this saves the time for the others."""
    for sources, other in zip(designs(block), expected, strict=True):
        digest = _digest_of(sources)
        print(digest)
        if digest != other:
            break


@dataclass(frozen=True)
class _Run:
    """Exit status and output of a command; the status is None if the command exceeded its time."""

    status: int | None
    output: str


def _run(command: Sequence[str], root: Path, limit: float) -> _Run:
    """Runs Python with ``command`` in the tree at ``root``; kills it after a time limit."""
    environment = os.environ | {
        "SYSTOLITH_BUILD": str(root / "build"), "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, *command], cwd=root, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return _Run(None, output)
    return _Run(process.returncode, output)


def files(block: str, path: str = "", root: Path = ROOT) -> list[str]:
    """The block's test files: first the one that tests ``path``, then the quickest ones."""
    folder = root / "verif" / "hdl" / block
    first, elsewhere = BLOCKS[block].first, BLOCKS[block].elsewhere
    rest = sorted(file.name for file in folder.glob("test_*.py") if file.name not in first)
    own = [f"hdl/{block}/{name}" for name in (*first, *rest)]
    nearest = f"hdl/{block}/test_{Path(path).name}"
    own.sort(key=lambda name: name != nearest)
    return [f"verif/{name}" for name in (*own, *elsewhere)]


def _test(block: str, path: str, root: Path, limit: float) -> _Run:
    """Runs the block's tests until one fails; those marked slow run after all others."""
    end = time.monotonic() + limit
    run = _Run(0, "")
    for marks in ("not slow", "slow"):
        run = _run(["-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-p",
                    "no:cacheprovider", "-m", marks, *files(block, path, root)],
                   root, end - time.monotonic())
        if run.status == 5:  # no test has such marks
            run = _Run(0, run.output)
        if run.status != 0:
            break
    return run


def _digest(block: str, root: Path, limit: float, expected: Sequence[str]) -> _Run:
    return _run(["-m", "verif.mutation.mutate", block, "--digest", *expected], root, limit)


def _designs(block: str, root: Path, limit: float) -> list[dict[str, str]]:
    """The Verilog of the block in the tree at ``root``, as `designs` returns it.

    Raises
    ------
    RuntimeError
        If a component cannot be elaborated, or not in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verilog.json"
        written = _run(["-m", "verif.mutation.mutate", block, "--verilog", str(file)], root, limit)
        if written.status != 0:
            raise RuntimeError(f"the Verilog cannot be written: {written.output}")
        found: list[dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _proved(block: str, root: Path, limit: float, original: Sequence[dict[str, str]]) -> bool:
    """Whether the block in the tree at ``root`` provably behaves as the ``original`` does."""
    try:
        changed = _designs(block, root, limit)
    except RuntimeError:  # in another configuration than the tests use
        return False
    return all(map(behave_alike, original, changed))


def judge(mutant: Mutant, original: Sequence[str], digest: Callable[[], _Run],
          test: Callable[[], _Run], prove: Callable[[], bool]) -> Verdict:
    """Tells whether the tests detect a mutant that has been applied.

    Parameters
    ----------
    mutant : Mutant
    original : sequence of str
        Digests of the Verilog without the change.
    digest, test : callable
        ``digest`` computes the digests of the mutant's Verilog, up to the first that differs;
        ``test`` runs the tests on the mutant.
    prove : callable
        Whether there is a proof that the mutant behaves like the original.
    """
    begin = time.monotonic()

    def verdict(result: Result, noticed: str = "") -> Verdict:
        return Verdict(mutant, result, time.monotonic() - begin, noticed)

    written = digest()
    if written.status != 0:
        return verdict(Result.INVALID)
    if written.output.split() == list(original):
        return verdict(Result.EQUIVALENT)
    tested = test()
    if tested.status is None:
        return verdict(Result.TIMED_OUT)
    if tested.status == 0:
        return verdict(Result.EQUIVALENT if prove() else Result.SURVIVED)
    if tested.status not in (1, 2):
        raise RuntimeError(f"the tests cannot be run: {tested.output}")
    failed = [line.split()[1] for line in tested.output.splitlines()
              if line.startswith(("FAILED ", "ERROR "))]
    return verdict(Result.CAUGHT, failed[0].split("/")[-1] if failed else "")


# --- reporting

def difference(mutant: Mutant, root: Path = ROOT) -> str:
    """The mutant's change as a diff."""
    text = (root / mutant.path).read_text(encoding="utf-8")
    return "".join(difflib.unified_diff(
        text.splitlines(keepends=True), mutant.apply(text).splitlines(keepends=True),
        mutant.path, f"{mutant.path} ({mutant.kind})", n=2))


def line(verdict: Verdict) -> str:
    """The line that is printed for a mutant."""
    return (f"{verdict.result:<10} {verdict.seconds:6.1f} s  {verdict.mutant!s:<52} "
            f"{verdict.noticed}").rstrip()


def report(verdicts: Sequence[Verdict], root: Path = ROOT) -> str:
    """The diffs of mutants that no test detected, and the number of mutants with each result."""
    count = {result: sum(verdict.result is result for verdict in verdicts) for result in Result}
    caught = count[Result.CAUGHT] + count[Result.TIMED_OUT]
    text = "".join(f"\n{difference(verdict.mutant, root)}" for verdict in verdicts
                   if verdict.result is Result.SURVIVED)
    return (f"{text}\ncaught {caught} of {caught + count[Result.SURVIVED]}"
            f" ({count[Result.TIMED_OUT]} by the time limit);"
            f" {count[Result.EQUIVALENT]} are equivalent, {count[Result.INVALID]} are no design")


def _mutate(block: str, count: int, seed: int, limit: float) -> int:
    mutants = draw(block, count, seed)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(
            ".git", ".venv", "build", "__pycache__", ".*_cache", "*.egg-info"))
        original = _designs(block, root, limit)
        digests = [_digest_of(sources) for sources in original]
        # This also builds the models that no mutant touches.
        sound = _test(block, "", root, max(limit, 3600))
        if sound.status != 0:
            raise RuntimeError(f"the tests must pass without a mutant: {sound.output}")
        verdicts = []
        for mutant in mutants:
            with applied(mutant, root):
                verdicts.append(judge(
                    mutant, digests, partial(_digest, block, root, limit, digests),
                    partial(_test, block, mutant.path, root, limit),
                    partial(_proved, block, root, limit, original)))
            print(line(verdicts[-1]), flush=True)
        print(report(verdicts, root))
    return int(any(verdict.result is Result.SURVIVED for verdict in verdicts))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 1 if a mutant survives."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("block", choices=BLOCKS, help="package of hdl to mutate")
    parser.add_argument("--count", type=int, default=40, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which mutants")
    parser.add_argument("--limit", type=float, default=900, help="seconds for each mutant")
    parser.add_argument("--digest", nargs="+", metavar="EXPECTED",
                        help="only print digests of the block's Verilog, to the first unexpected")
    parser.add_argument("--verilog", metavar="FILE", type=Path,
                        help="only write the block's Verilog to a file, in JSON")
    options = parser.parse_args(arguments)
    if options.verilog is not None:
        options.verilog.write_text(json.dumps(list(designs(options.block))), encoding="utf-8")
        return 0
    if options.digest is not None:
        _print_digests(options.block, options.digest)
        return 0
    return _mutate(options.block, options.count, options.seed, options.limit)


if __name__ == "__main__":
    sys.exit(main())
