"""Markdown for the generated pages: tables, and ranges of bits."""

from collections.abc import Iterable

__all__ = ["bit_range", "table"]


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table with the header ``head``; cells are not escaped."""
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def bit_range(low: int, width: int) -> str:
    """The bits of a field as text: ``high:low``, or the number of a single bit."""
    return f"{low + width - 1}:{low}" if width > 1 else str(low)
