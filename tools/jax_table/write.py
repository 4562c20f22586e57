"""Writes docs/jax-api.md, the page of JAX's functions."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping

from tools.jax_table.run import MODULES
from tools.jax_table.tables import UNDEFINED, UP_TO_SIGN
from tools.jax_table.worker import TOLERANCE

__all__ = ["text"]

_HEAD = """# JAX's functions on the chip

`make jax-table` writes this page.
It runs all public functions of {modules}
with random arguments on the golden chip (`tiny`) and on a CPU, and compares the results.
Integers and booleans must be equal.
A float32 result may differ by at most {float32[0]:g} of its value plus {float32[1]:g},
a bfloat16 result by at most {bfloat16[0]:g} of its value plus {bfloat16[1]:g}.
Absolute values are compared where the sign of a result is arbitrary: {up_to_sign}.
Only shapes and types are compared where values are not defined:
{undefined}.
Matrix products are computed with JAX's precision `highest`.
Each function is run with arguments of one or two element types, and works if all results are
right.
It is refused if it ends with an error on the chip, or has no result within the time limit.
Collective operations run on both cores, within `jax.shard_map`.
The functions of `jax.numpy.fft` are left out: they compute complex numbers, which the chip does not
have.

Of {tried} functions that were run, {works} work: {share:.1%}.
"""


def text(results: Mapping[str, tuple[str, str]]) -> str:
    """The text of the page, as Markdown.

    Parameters
    ----------
    results : mapping of str to (str, str)
        Outcome of each function and the reason for it, by the function's full name.
    """
    counts = Counter(status for status, _ in results.values())
    tried = sum(counts[status] for status in ("works", "differs", "refused"))
    working = {name.rsplit(".", 1)[1] for name, (was, _) in results.items() if was == "works"}
    parts = [_HEAD.format(
        modules=_names(MODULES), up_to_sign=_names(UP_TO_SIGN), undefined=_names(
            name for name in UNDEFINED if name in working),
        tried=tried, works=counts["works"], **TOLERANCE,
        share=counts["works"] / max(tried, 1))]
    for title in MODULES:
        of = {name.rsplit(".", 1)[1]: result for name, result in results.items()
              if name.rsplit(".", 1)[0] == title}
        parts.append(f"## {title}\n")
        for status, heading in (
                ("works", "Functions that work"),
                ("refused", "Functions that are refused"),
                ("differs", "Functions whose results differ"),
                ("types",
                 "Not run on the chip, because the chip does not have the type of their results"),
                ("host", "Not run on the chip, because they return no array"),
                ("untried",
                 "Not run on the chip, because `make jax-table` has no arguments that they "
                 "accept")):
            found = {name: reason for name, (was, reason) in of.items() if was == status}
            if found:
                parts.append(_section(f"{heading} ({len(found)})", found,
                                      reasons=status in ("refused", "differs")))
    return "\n".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _section(heading: str, found: Mapping[str, str], *, reasons: bool) -> str:
    if reasons:
        rows = [f"| `{name}` | {_cell(reason)} |" for name, reason in found.items()]
        return "\n".join((f"{heading}:\n", "| function | arguments and reason |", "|---|---|",
                          *rows, ""))
    listed = textwrap.fill(", ".join(f"`{name}`" for name in found), 100, break_long_words=False,
                           break_on_hyphens=False)
    return f"{heading}:\n\n{listed}\n"


def _cell(reason: str) -> str:
    return reason.replace("|", "\\|").replace("`", "'")[:200]
