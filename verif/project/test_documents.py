"""Every Markdown page is wrapped, its links resolve, and everything that it names exists."""

import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COLUMNS = 100
SOURCES = ("hdl", "golden", "sim", "systolith", "tools", "verif")
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"),
                         re.MULTILINE))

# What a page may name though it is no name of the project.
FOREIGN = {"NaN", "steps_per_execution"}


def _files() -> Iterator[pathlib.Path]:
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


FILES = list(_files())
WORDS = set(re.findall(r"\w+", " ".join(
    path.read_text(encoding="utf-8") for path in [*FILES, ROOT / "Makefile"]
    if path.suffix in ("", ".py", ".cpp", ".hpp") and path.name != pathlib.Path(__file__).name)))
WORDS.update(path.stem for path in FILES)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def prose(text: str) -> str:
    """The page without its code blocks, fenced or indented."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=\n)\n(?:(?: {4}.*)?\n)+", "\n", text)


def anchors(text: str) -> set[str]:
    """The anchors of the page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: pathlib.Path, text: str) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        path = page.parent / name if name else page
        found = path.is_file()
        if found and anchor:
            linked = text if path == page else path.read_text(encoding="utf-8")
            found = anchor in anchors(linked)
        if not found:
            broken.append(link)
    return broken


def long_lines(text: str) -> list[str]:
    return [line for line in prose(text).splitlines()
            if len(line) > COLUMNS and not line.startswith("|")
            and not re.fullmatch(r"\S*\]\(\S+\)\S*|https?://\S+", line)]


def _is_file(name: str) -> bool:
    if (ROOT / name).exists() or any((ROOT / "docs").glob(name)):
        return True
    # A bare name, or the end of a path, names a file in some folder of the sources.
    pattern = re.compile("(.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
    return any(pattern.fullmatch(path.relative_to(ROOT).as_posix()) for path in FILES)


def _is_module(name: str, attributes: bool = True) -> bool:
    """Whether it is a module or package, or an attribute that the module's text has."""
    parts = name.split(".")
    path = ROOT.joinpath(*parts)
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    for length in range(len(parts) - 1, 0, -1) if attributes else ():
        path = ROOT.joinpath(*parts[:length])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_file():
            words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            return words.issuperset(parts[length:])
    return False


def unknown_names(text: str) -> list[str]:
    """Files, folders, modules, targets and identifiers in the page's text that do not exist."""
    unknown = []
    body = prose(text)
    for name in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", body):
        if re.fullmatch(r"[\w.*/-]+\.(?:py|md|hpp|cpp|svg|toml)|(?:[\w-]+/)+", name):
            known = name.startswith("build/") or _is_file(name)
        elif re.fullmatch(r"(?:" + "|".join(SOURCES) + r")\.[\w.]+", name):
            known = _is_module(name)
        elif re.fullmatch(r"(?=.*[a-z])(?=\w*[A-Z_])[A-Za-z]\w+|[A-Z]+(?:_[A-Z]+)+", name):
            # The register map makes two registers of a counter.
            counter = re.sub("_(?:LO|HI)$", "", name).lower()
            known = name in WORDS or name in FOREIGN or counter in WORDS
        else:
            continue
        if not known:
            unknown.append(name)
    for target in re.findall(r"`make ([a-z0-9-]+)[` ]", body) + re.findall(
            r"^ {4}make ([a-z0-9-]+)", text, re.MULTILINE):
        if target not in TARGETS:
            unknown.append(f"make {target}")
    for module in re.findall(r"python -m ([a-z_.]+)", text):
        if module.split(".")[0] in SOURCES and not _is_module(module, attributes=False):
            unknown.append(f"python -m {module}")
    return unknown


@pages
def test_lines_are_wrapped(page: pathlib.Path) -> None:
    lines = long_lines(page.read_text(encoding="utf-8"))
    assert not lines, "\n".join(lines)


@pages
def test_links_resolve(page: pathlib.Path) -> None:
    links = broken_links(page, page.read_text(encoding="utf-8"))
    assert not links, ", ".join(links)


# History names what no longer exists; test_jax_table checks the names of JAX's functions.
@pytest.mark.parametrize("page", [page for page in PAGES
                                  if page.name not in {"CHANGELOG.md", "jax-api.md"}],
                         ids=lambda path: path.name)
def test_what_it_names_exists(page: pathlib.Path) -> None:
    names = unknown_names(page.read_text(encoding="utf-8"))
    assert not names, ", ".join(names)


@pages
def test_has_no_gaps_left_to_fill(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"\b(?:TODO|TBD|FIXME|XXX)\b|\?\?\?|@[A-Z]+@", text)


def test_the_checks_see_what_is_wrong() -> None:
    page = ROOT / "README.md"
    assert broken_links(page, "# A\n\n[a](docs/core.md#counters) [b](#a) [c](LICENSE)\n") == []
    assert broken_links(page, "[a](docs/nothing.md) [b](docs/core.md#no) [c](#no)\n") == [
        "docs/nothing.md", "docs/core.md#no", "#no"]
    assert long_lines("x " * 60 + "\n") == ["x " * 60]
    assert long_lines("| " + "x " * 60 + "\n```\n" + "x " * 60 + "\n```\n") == []
    assert unknown_names("`hdl/config.py` `core.py` `Config` `hdl.isa.Fault` `make sim`\n") == []
    assert unknown_names("`hdl/none.py` `NoSuchThing` `hdl.isa.No_such` `make nothing`\n"
                         "`NO_SUCH` python -m sim.nothing\n") == [
        "hdl/none.py", "NoSuchThing", "hdl.isa.No_such", "NO_SUCH", "make nothing",
        "python -m sim.nothing"]


def test_commands_of_the_makefile_are_modules_that_run() -> None:
    """Each has a file that Python can run; ``make docs`` is not run as a whole by any test."""
    modules = set(re.findall(r"-m ((?:sim|tools|verif)[\w.]*)",
                             (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert len(modules) > 20
    for module in modules:
        path = ROOT.joinpath(*module.split("."))
        run = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert run.is_file(), f"the Makefile runs {module}, which does not exist"
        assert 'if __name__ == "__main__":' in run.read_text(encoding="utf-8"), module
