"""Classes, functions and folders stay small, and no ten lines of code are written twice."""

import ast
import pathlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("hdl", "golden", "sim", "systolith", "tools", "verif", "examples")

CLASS_LINES = 400
"""Lines of a class, with its docstrings and comments."""

FUNCTION_LINES = 60
"""Lines of a function, with its docstring and its comments."""

FOLDER_FILES = 12
"""Python files of a folder, without ``__init__.py``."""

DUPLICATE_LINES = 10
"""Lines of code that may not be the same in two places outside of tests."""


def sources() -> list[pathlib.Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def too_long(text: str) -> Iterator[str]:
    """Name each class and function of a module's text that is longer than its limit."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            kind, limit = "class", CLASS_LINES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kind, limit = "function", FUNCTION_LINES
        else:
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > limit:
            yield f"{kind} {node.name} has {lines} lines, more than {limit}"


def code_lines(text: str) -> list[tuple[int, str]]:
    """Number and text of each line of a module but imports, docstrings, comments and brackets."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in lines
            if number not in left_out and line.strip("()[]{},") and not line.startswith("#")]


def duplicates(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Name each two places in named texts that share `DUPLICATE_LINES` lines of code."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, text in texts:
        lines = code_lines(text)
        for first in range(len(lines) - DUPLICATE_LINES + 1):
            run = lines[first:first + DUPLICATE_LINES]
            places[tuple(line for _, line in run)].append((name, run[0][0]))
    for found in places.values():
        for (one, line), (other, second) in combinations(found, 2):
            if one != other or second - line >= DUPLICATE_LINES:
                yield f"{one}:{line} is the same as {other}:{second}"


@pytest.mark.parametrize("package", PACKAGES)
def test_classes_and_functions_are_short(package: str) -> None:
    found = [f"{path.relative_to(ROOT)}: {problem}" for path in sources()
             if path.is_relative_to(ROOT / package)
             for problem in too_long(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_folders_have_few_files() -> None:
    files = Counter(path.parent.relative_to(ROOT) for path in sources()
                    if path.name != "__init__.py")
    found = [f"{folder} has {count} Python files, more than {FOLDER_FILES}"
             for folder, count in files.items() if count > FOLDER_FILES]
    assert not found, "\n".join(found)


def test_nothing_is_written_twice() -> None:
    found = list(duplicates((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
                            for path in sources() if not path.is_relative_to(ROOT / "verif")))
    assert not found, "\n".join(found)


def test_the_check_finds_what_is_too_long() -> None:
    body = "    pass\n"
    assert not list(too_long("def short():\n" + body * (FUNCTION_LINES - 1)))
    assert list(too_long("def long():\n" + body * FUNCTION_LINES)) == [
        f"function long has {FUNCTION_LINES + 1} lines, more than {FUNCTION_LINES}"]
    assert not list(too_long("class Small:\n" + body * (CLASS_LINES - 1)))
    assert list(too_long("class Large:\n" + body * CLASS_LINES)) == [
        f"class Large has {CLASS_LINES + 1} lines, more than {CLASS_LINES}"]


def test_the_check_finds_what_is_written_twice() -> None:
    block = "".join(f"a{line} = {line}\n" for line in range(DUPLICATE_LINES))
    other = block.replace("a3 = 3\n", '"""Not code."""\n\n# Nor is this.\na3 = 3\n')
    assert list(duplicates([("one.py", "b = 1\n" + block), ("two.py", other)])) == [
        "one.py:2 is the same as two.py:1"]
    assert not list(duplicates([("one.py", block), ("two.py", block.replace("a3", "c3"))]))
