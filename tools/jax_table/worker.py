"""Runs JAX's functions on the golden chip and on the CPU, and prints a line of JSON for each.

    python -m tools.jax_table.worker jax.numpy.sin jax.lax.add

The worker is a separate process, so that the caller can kill it if a function does not end.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tools.jax_table.arguments import Call, calls
from tools.jax_table.tables import COLLECTIVES, UNDEFINED, UP_TO_SIGN

__all__ = ["TOLERANCE", "main"]

TOLERANCE = {"float32": (2e-5, 1e-5), "bfloat16": (1e-2, 1e-2)}
"""Permitted (relative, absolute) error by element type; results of other types must be equal."""
MOST = 2
"""Maximum number of element types of arguments with which a function is run."""
_KINDS = ("float32", "bfloat16", "bool", "int32", "uint32", "int16", "uint16", "int8", "uint8")


def main(names: list[str]) -> None:
    """Run the functions with these full names."""
    jax.config.update("jax_default_matmul_precision", "highest")
    for full in names:
        title, name = full.rsplit(".", 1)
        function = getattr(importlib.import_module(title), name)
        print(json.dumps([full, *_run(title, name, function)]), flush=True)


def _run(title: str, name: str, function: Callable[..., Any]) -> tuple[str, str]:
    """Run a function on chip and CPU; return its outcome and the reason (see `run.run`).

    ``title`` is the name of the function's module, and ``name`` that of the function in it.
    """
    why, done = "", set[str]()
    for label, call in calls(title, name, function):
        kind = label.split("[")[0]
        if kind in done:
            continue
        try:
            want = _called(function, call, "cpu", name in COLLECTIVES)
        except Exception as error:  # noqa: BLE001 - these are not arguments of the function
            why = why or f"{type(error).__name__}: {error}"
            continue
        if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(want)):
            return "host", "returns no array"
        if any(np.asarray(leaf).dtype.name not in _KINDS for leaf in jax.tree.leaves(want)):
            return "types", f"returns {np.asarray(jax.tree.leaves(want)[0]).dtype.name}"
        done.add(kind)
        try:
            got = _called(function, call, "systolith", name in COLLECTIVES)
            if name in UP_TO_SIGN:
                got, want = jax.tree.map(np.abs, (got, want))
            problem = _difference(got, want, defined=name not in UNDEFINED)
        except Exception as error:  # noqa: BLE001 - the table says it
            return "refused", f"{label}: {_reason(error)}"
        if problem:
            return "differs", f"{label}: {problem}"
        if len(done) == MOST:
            break
    return ("works", ", ".join(sorted(done))) if done else ("untried", why.split("\n")[0][:160])


def _called(function: Callable[..., Any], call: Call, platform: str, collective: bool) -> Any:
    """The results of ``call`` on ``platform``; on the chip, the function is jitted if possible.

    A ``collective`` function runs on all devices of the platform, in `jax.shard_map`.
    """
    leaves, tree = jax.tree.flatten(call)
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray | np.generic)]

    def body(*traced: Any) -> Any:
        rest = iter(traced)
        arguments, options = jax.tree.unflatten(tree, [
            next(rest) if isinstance(leaf, np.ndarray | np.generic) else leaf for leaf in leaves])
        return function(*arguments, **options)

    devices = jax.devices(platform)
    if collective:
        def part(*traced: Any) -> Any:
            return jax.tree.map(jnp.atleast_1d, body(*traced))

        mesh, cut = jax.sharding.Mesh(devices, ("x",)), jax.sharding.PartitionSpec("x")
        return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=cut, out_specs=cut,
                                     check_vma=False))(*arrays)
    with jax.default_device(devices[0]):
        if platform == "cpu":
            return body(*map(jnp.asarray, arrays))
        try:
            return jax.jit(body)(*arrays)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError):
            # The function cannot be traced, because it depends on its arguments' values.
            return body(*map(jnp.asarray, arrays))


def _difference(got: Any, want: Any, *, defined: bool) -> str:
    """Describe the first difference between two pytrees of results; empty if there is none.

    If not ``defined``, only shapes and types are compared.
    """
    made, wanted = jax.tree.leaves(got), jax.tree.leaves(want)
    if len(made) != len(wanted):
        return f"{len(made)} results, not {len(wanted)}"
    for one, other in zip(map(np.asarray, made), map(np.asarray, wanted), strict=True):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{one.dtype}{list(one.shape)}, not {other.dtype}{list(other.shape)}"
        relative, absolute = TOLERANCE.get(one.dtype.name, (0, 0))
        a, b = one.astype(np.float64), other.astype(np.float64)
        if defined and not np.allclose(a, b, relative, absolute, equal_nan=True):
            at = np.unravel_index(np.argmax(~np.isclose(a, b, relative, absolute, equal_nan=True)),
                                  a.shape)
            return f"{a[at]:.7g}, not {b[at]:.7g}"
    return ""


def _reason(error: Exception) -> str:
    """The text of an error's message, without lines about this file and without repetitions."""
    text = " ".join(str(error).split())
    text = text.replace("the compiler does not support these parts of the program: ", "")
    parts = re.split(r" ?/\S+:\d+ \(\S*\):? ?", text)
    return " ".join(dict.fromkeys(part for part in parts if part))[:300]


if __name__ == "__main__":
    main(sys.argv[1:])
