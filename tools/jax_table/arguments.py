"""Arguments for JAX's functions, chosen by parameter name or by function name from small tables."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

from tools.jax_table.maker import SIDE, Maker
from tools.jax_table.tables import BY_FUNCTION, BY_PARAMETER

__all__ = ["calls", "names"]

SHAPES = ((SIDE, SIDE), (SIDE,), (), (2, SIDE, SIDE), (3,))
"""Shapes of arrays to try, in order; the first that the function accepts on the CPU is used."""
KINDS = ("float32", "int32", "bool", "uint32")
"""Element types of arrays to try."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call; numpy arrays are traced, all others are static."""


def names(module: Any) -> list[str]:
    """Names of the public functions of ``module``, in alphabetical order."""
    return [name for name in dir(module) if name[0].islower()
            and callable(getattr(module, name)) and not inspect.isclass(getattr(module, name))
            and not isinstance(getattr(module, name), _SCALARS)]


_SCALARS = (type(jnp.float32),)
"""The class of `jax.numpy.float32` and similar objects, which are element types, not functions."""


def calls(title: str, name: str, function: Callable[..., Any]) -> Iterator[tuple[str, Call]]:
    """Yield (description, call) for each call of a function to try.

    The description gives the element type, and in most cases the shape, of the call's arrays.

    Parameters
    ----------
    title : str
        Name of the function's module.
    name : str
        Name of the function.
    function : callable
        The function.
    """
    full = f"{title.removeprefix('jax.')}.{name}"
    special = BY_FUNCTION.get(full, BY_FUNCTION.get(name))
    for kind in KINDS:
        for shape in SHAPES:
            make = Maker(kind, shape)
            if special is not None:
                made = special(make)
                yield kind, made if _is_call(made) else (made, {})
                break
            found = _by_parameters(make, function, BY_PARAMETER)
            if found is not None:
                yield f"{kind}{list(shape)}", found


def _is_call(made: Any) -> bool:
    return len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict)


def _by_parameters(make: Maker, function: Callable[..., Any],
                   table: dict[str, Callable[[Maker], Any]]) -> Call | None:
    """A call of ``function`` with a value for each parameter that has no default.

    ``table`` maps the name of a parameter to a function that makes its value. Returns None if the
    table lacks a parameter.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            if parameter.name in ("args", "arys", "arrays", "xi") and not positional:
                positional += [make.array(), make.array()]
            continue
        if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.name not in table:
            return None
        value = table[parameter.name](make)
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return tuple(positional), keywords
