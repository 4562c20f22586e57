"""Storage of the memory models of `cocotbext.axi`."""

from typing import Any

__all__ = ["BadMemory"]


class BadMemory(bytearray):
    """Memory that refuses accesses to certain addresses: `AxiRam` then answers SLVERR."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.bad: set[int] = set()

    def __getitem__(self, key: Any) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._look(key)
        super().__setitem__(key, value)

    def _look(self, key: Any) -> None:
        if any(key.start <= place < key.stop for place in self.bad):
            raise ValueError("refused")
