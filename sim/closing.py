"""Objects that hold a resource until they are closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closeable"]


class Closeable(ABC):
    """A context manager that calls `close` when its block ends, also after an exception."""

    @abstractmethod
    def close(self) -> None:
        """Release the resource. Closing twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()
