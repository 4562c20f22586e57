"""Source lines of operations: those of the program at hand, and of functions that it calls."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from sim.compiler.graph.ir import Graph  # noqa: E402
from sim.compiler.importer.importer import import_stablehlo  # noqa: E402


def imported(function: Any, *arguments: Any) -> Graph:
    return import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))


def lines(graph: Graph, kind: str | None = None) -> set[int]:
    """Line numbers in this file from which the operations of a graph come."""
    places = [operation.location for operation in graph.operations
              if kind in (None, operation.kind)]
    assert all(place is not None and place.file in ("", __file__) for place in places)
    return {place.line for place in places if place is not None and place.line}


def test_operations_of_a_library_are_not_at_the_line_of_an_earlier_program() -> None:
    def keys(key: Any) -> Any:
        return jax.random.split(key, 7)

    def others(key: Any) -> Any:
        return jax.random.split(key, 7)[3]

    key = jax.random.key(1)
    found: dict[Any, list[str]] = {}
    for function in (keys, others, keys):
        graph = imported(function, key)
        assert lines(graph) == {function.__code__.co_firstlineno + 1}
        names = [str(operation.location) for operation in graph.operations]
        assert found.setdefault(function, names) == names
        assert any("_threefry_split" in name for name in names)


def test_operations_of_a_users_function_are_at_its_line() -> None:
    @jax.jit
    def helper(x: Any) -> Any:
        return jnp.sin(x)

    function = helper.__wrapped__.__code__.co_firstlineno + 2
    for program in (lambda x: helper(x) + 1, lambda x: helper(x) - 2):
        assert lines(imported(program, jnp.ones(3)), "sine") == {function}
