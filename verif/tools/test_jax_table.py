"""The page of JAX's functions is complete, and a sample of them does what it says."""

import pathlib
import random
import re

import pytest

from tools.jax_table.run import MODULES, functions, run
from tools.jax_table.write import text

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "jax-api.md"


def section(title: str) -> str:
    """The part of docs/jax-api.md about a module."""
    return PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0] + "\n"


def working() -> list[str]:
    """Full names of the functions that work."""
    return [f"{title}.{name}" for title in MODULES
            for part in re.findall(r"^Functions that work \(\d+\):\n\n(.*?)\n\n", section(title),
                                   re.MULTILINE | re.DOTALL)
            for name in re.findall(r"`(\w+)`", part)]


def test_page_lists_every_function() -> None:
    found = [f"{title}.{name}" for title in MODULES
             for name in re.findall(r"`(\w+)`", section(title))]
    assert len(found) > 500
    assert sorted(found) == sorted(functions())


def test_page_separates_what_works_from_what_is_refused() -> None:
    page = text({"jax.nn.relu": ("works", "float32"), "jax.nn.elu": ("refused", "no | reason"),
                 "jax.lax.dtype": ("host", "returns no array"),
                 "jax.lax.empty": ("works", "float32")})
    assert "Of 3 functions that were run, 2 work: 66.7%." in page
    assert "values are not defined:\n`empty`.\n" in page
    assert page.splitlines()[:10] == PAGE.read_text().splitlines()[:10]
    assert "Functions that work (1):\n\n`relu`" in page
    assert "| `elu` | no \\| reason |" in page


@pytest.mark.slow
def test_sample_of_functions_works() -> None:
    # It compiles programs in a process of its own: 10 s.
    sample = random.Random(2026).sample(working(), 16)
    done = list(run(sample, 300))
    assert [name for name, _, _ in done] == sample
    assert [(name, reason) for name, status, reason in done if status != "works"] == []
