"""Stubs that replace a block's submodules, so that a test simulates the block's wiring alone."""

from collections.abc import Callable
from types import ModuleType

import pytest
from amaranth import Module
from amaranth.lib import wiring

__all__ = ["Stub", "stub_out"]


class Stub(wiring.Component):
    """A component's ports without its logic: a testbench sets the outputs."""

    def elaborate(self, platform: object) -> Module:
        return Module()


def stub_out(monkeypatch: pytest.MonkeyPatch, module: ModuleType,
             *names: str) -> dict[str, list[Stub]]:
    """Makes ``module`` place stubs for the named components.

    Returns
    -------
    dict of str to list of Stub
        By component's name, the stubs in the order of their placement. The dictionary is complete
        after the elaboration of ``module``'s components.
    """
    placed: dict[str, list[Stub]] = {name: [] for name in names}

    def make(name: str, component: type[wiring.Component]) -> Callable[..., Stub]:
        def place(*arguments: object, **options: object) -> Stub:
            real = component(*arguments, **options)
            real._MustUse__used = True  # only its signature is of use
            stub = Stub(real.signature)
            placed[name].append(stub)
            return stub
        return place

    for name in names:
        monkeypatch.setattr(module, name, make(name, getattr(module, name)))
    return placed
