"""Lets Python free most of a design as soon as nothing refers to it.

Amaranth's objects refer to each other in cycles, which only the garbage collector finds. It takes
longer to free a design than Python takes without it. So `weaken` removes three references that
close such cycles: from a module's builders to the module, from a format that only shows a signal to
the signal, and from each component to itself, for `tracemalloc`'s part of a warning.
"""

import functools
import sys
import weakref
from typing import Any

from amaranth import Format, Module, Signal, tracer
from amaranth._unused import MustUse

__all__ = ["weaken"]


class _Formats:
    """Replace the attribute `Signal._format`: a format that only shows the signal is not kept."""

    def __get__(self, signal: Signal | None, owner: type) -> Any:
        if signal is None:
            return self
        kept = vars(signal).get("_format")
        return Format("{}", signal) if kept is None else kept

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
        self._src_loc = tracer.get_src_loc()
        self._builder = weakref.proxy(self)
        for builder in (self.d, self.submodules, self.domains):
            object.__setattr__(builder, "_builder", self._builder)

    Module.__init__ = init_module
    MustUse.__new__ = _new
    Signal._format = _Formats()
