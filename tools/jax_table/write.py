"""Writes the page of JAX's functions."""

import textwrap
from collections import Counter
from collections.abc import Mapping

from tools.jax_table.run import MODULES
from tools.jax_table.worker import TOLERANCE

__all__ = ["text"]

_HEAD = """# JAX's functions on the chip

`make jax-table` writes this page.
It runs all public functions of {modules}
with random arguments on the golden chip (`tiny`) and on a CPU, and compares the results.
Integers and predicates must be equal.
A float32 result may differ by {relative:g} of its value plus {absolute:g}.
Matrix products have the highest precision.
A function runs with up to two types of arguments; it works if all of them do.
Collectives run on both cores, within `jax.shard_map`.
The functions of `jax.numpy.fft` are left out: they compute complex numbers.

Of {tried} functions with types that the chip has, {works} work: {share:.1%}.
"""


def text(results: Mapping[str, tuple[str, str]]) -> str:
    """The page.

    Parameters
    ----------
    results : mapping of str to (str, str)
        How each function did, and why, by its full name.
    """
    counts = Counter(status for status, _ in results.values())
    tried = sum(counts[status] for status in ("works", "differs", "refused"))
    relative, absolute = TOLERANCE["float32"]
    parts = [_HEAD.format(
        modules=", ".join(f"`{title}`" for title in MODULES), relative=relative,
        absolute=absolute, tried=tried, works=counts["works"],
        share=counts["works"] / max(tried, 1))]
    for title in MODULES:
        of = {name.rsplit(".", 1)[1]: result for name, result in results.items()
              if name.rsplit(".", 1)[0] == title}
        parts.append(f"## {title}\n")
        for status, heading in (
                ("works", "Work"), ("refused", "Refused"), ("differs", "Differ"),
                ("types", "Not run: types that the chip does not have"),
                ("host", "Not run: return no array"), ("untried", "Not run: no arguments")):
            found = {name: reason for name, (was, reason) in of.items() if was == status}
            if found:
                parts.append(_section(f"{heading} ({len(found)})", found,
                                      reasons=status in ("refused", "differs")))
    return "\n".join(parts)


def _section(heading: str, found: Mapping[str, str], *, reasons: bool) -> str:
    if reasons:
        rows = [f"| `{name}` | {_cell(reason)} |" for name, reason in found.items()]
        return "\n".join((f"{heading}:\n", "| function | why |", "|---|---|", *rows, ""))
    listed = textwrap.fill(", ".join(f"`{name}`" for name in found), 100, break_long_words=False,
                           break_on_hyphens=False)
    return f"{heading}:\n\n{listed}\n"


def _cell(reason: str) -> str:
    return reason.replace("|", "\\|").replace("`", "'")[:200]
