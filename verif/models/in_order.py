"""A checker that compares items in order."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["InOrderChecker"]

T = TypeVar("T")


class InOrderChecker(Generic[T]):
    """Compares the items that a design gives with those that its model expects, in order.

    Parameters
    ----------
    name : str
        Name of the items, for messages.
    show : callable
        Formats an item for messages.

    Attributes
    ----------
    checked : int
        Number of items compared so far; `clear` does not change it.
    """

    def __init__(self, name: str, show: Callable[[T], str] = str) -> None:
        self._name = name
        self._show = show
        self._expected: deque[T] = deque()
        self.checked = 0

    @property
    def empty(self) -> bool:
        """Whether all expected items have come."""
        return not self._expected

    def expect(self, item: T) -> None:
        """Adds the model's next item."""
        self._expected.append(item)

    def check(self, item: T) -> None:
        """Checks the design's next item.

        Raises
        ------
        AssertionError
            If another one is expected, or none.
        """
        where = f"{self._name} {self.checked}"
        if not self._expected:
            raise AssertionError(f"{where}: {self._show(item)}, but none is expected")
        expected = self._expected.popleft()
        if item != expected:
            raise AssertionError(f"{where}: {self._show(item)}, not {self._show(expected)}")
        self.checked += 1

    def clear(self) -> None:
        """Forgets all expected items, because of a reset."""
        self._expected.clear()

    def finish(self) -> None:
        """Ends the comparison.

        Raises
        ------
        AssertionError
            If an expected item has not come, or nothing was compared.
        """
        if self._expected:
            raise AssertionError(f"{len(self._expected)} of {self._name} did not come; the next is "
                                 f"{self._show(self._expected[0])}")
        if not self.checked:
            raise AssertionError(f"nothing of {self._name} was checked")
