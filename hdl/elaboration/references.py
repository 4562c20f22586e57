"""Lets Python free a design as soon as nothing refers to it.

Amaranth's objects refer to each other in cycles, which only the garbage collector finds: a module
and its builders, a signal and its format, each component and the place of its creation. The
collector takes longer to free a design than Python takes without it. So `weaken` removes the
references that close these cycles, none of which is needed.
"""

import functools
import sys
import weakref
from typing import Any

from amaranth import Format, Module, Signal
from amaranth._unused import MustUse

__all__ = ["weaken"]


class _Formats:
    """Replaces the attribute `Signal._format`: a format that only shows the signal is not kept."""

    def __get__(self, signal: Signal, owner: type) -> Any:
        return vars(signal).get("_format") or Format("{}", signal)

    def __set__(self, signal: Signal, format: Any) -> None:
        if type(format) is Format and len(format._chunks) == 1:
            [(value, spec)] = format._chunks
            if value is signal and not spec:
                return
        vars(signal)["_format"] = format


def _new(cls: type, *args: object, src_loc_at: int = 0, **kwargs: object) -> Any:
    """Replace `MustUse.__new__`, whose objects refer to themselves for the sake of a warning."""
    frame = sys._getframe(1 + src_loc_at)
    made: Any = super(MustUse, cls).__new__(cls)
    made._MustUse__used = False
    made._MustUse__context = {"filename": frame.f_code.co_filename, "lineno": frame.f_lineno}
    return made


@functools.cache
def weaken() -> None:
    """Remove the references, in all objects that are created from now on."""
    make_module = Module.__init__

    def init_module(self: Module) -> None:
        """Let the builders, which nothing uses without the module, not keep it."""
        make_module(self)
        self._builder = weakref.proxy(self)
        for builder in (self.d, self.submodules, self.domains):
            object.__setattr__(builder, "_builder", self._builder)

    Module.__init__ = init_module
    MustUse.__new__ = _new
    Signal._format = _Formats()
