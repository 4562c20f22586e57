"""A module's entry function: name, donated arguments, and shardings of arguments and results."""

from dataclasses import dataclass
from typing import Any

from sim.compiler.graph.torus import Division
from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.mesh import division_of

__all__ = ["Divisions", "Entry", "entry_divisions", "entry_function", "read_entry"]

Divisions = tuple[Division | None, ...]
"""How each argument, or each result, is divided; None if all devices have all of it."""


@dataclass(frozen=True)
class Entry:
    """Facts about a module's entry function.

    Attributes
    ----------
    name : str
        Name of the module; that of the entry function if the module has none.
    donated : tuple of int
        Numbers of the arguments whose buffers the caller donates to the program.
    outline : bytes
        For several devices, text of a module with the same signature, which states how arguments
        and results are divided; for one device, empty.
    """

    name: str
    donated: tuple[int, ...]
    outline: bytes = b""


def entry_function(module: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a module's entry function, and all functions by name.

    The entry is ``main`` or else the only public function.

    Raises
    ------
    ValueError
        If there is neither.
    """
    functions = {python(operation.attributes["sym_name"]): operation
                 for operation in module.body.operations
                 if operation.operation.name == "func.func"}
    public = [name for name, operation in functions.items()
              if "sym_visibility" not in operation.attributes
              or python(operation.attributes["sym_visibility"]) == "public"]
    if "main" not in functions and len(public) != 1:
        raise ValueError("a program must have a function main, or one public function, "
                         f"not {', '.join(functions) or 'none'}")
    return ("main" if "main" in functions else public[0]), functions


def entry_divisions(function: Any, module: Any, devices: int) -> tuple[Divisions, Divisions]:
    """Return how the arguments and how the results of a function are divided between devices.

    ``module`` contains the function, and the meshes to which its shardings refer.

    Raises
    ------
    ValueError
        If the number of devices of a mesh is neither 1 nor ``devices``, or the size of a divided
        dimension is not a multiple of the number of parts.
    """
    from jaxlib.mlir import ir

    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    found = []
    for types, name in ((kind.inputs, "arg_attrs"), (kind.results, "res_attrs")):
        given = function.attributes[name] if name in function.attributes else [{}] * len(types)
        divisions = [division_of(module, item["sdy.sharding"], None, devices)
                     if "sdy.sharding" in item else None for item in given]
        for type, division in zip(types, divisions, strict=True):
            if division is not None:
                division.part_shape(tuple(ir.RankedTensorType(type).shape))
        found.append(tuple(divisions))
    return found[0], found[1]


def read_entry(module: Any, devices: int) -> Entry:
    """Return the `Entry` of a module that is compiled for ``devices`` devices."""
    name, functions = entry_function(module)
    function = functions[name]
    attributes = module.operation.attributes
    title = python(attributes["sym_name"]) if "sym_name" in attributes else name
    donated: tuple[int, ...] = ()
    if "arg_attrs" in function.attributes:
        donated = tuple(number for number, item in enumerate(function.attributes["arg_attrs"])
                        if "tf.aliasing_output" in item or "jax.buffer_donor" in item)
    outline = b"" if devices == 1 else _outline(title, function, module, devices).encode()
    return Entry(title, donated, outline)


def _outline(title: str, function: Any, module: Any, devices: int) -> str:
    """Return the text of a module with a function's signature and shardings in HLO's notation.

    ``title`` becomes the name of the module. JAX reads the text to learn the shardings of arguments
    and results for which the user has specified none.
    """
    from jaxlib.mlir import ir

    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    arguments = ", ".join(f"%arg{number}: {type}" for number, type in enumerate(kind.inputs))
    given, made = (list(map(_sharding, divisions))
                   for divisions in entry_divisions(function, module, devices))
    parameters = ", ".join(f'"{sharding}"' for sharding in given)
    sharding = made[0] if len(made) == 1 else f"{{{', '.join(made)}}}"
    zeros = "".join(f"    %{number} = stablehlo.constant dense<{_zero(type)}> : {type}\n"
                    for number, type in enumerate(kind.results))
    types = ", ".join(map(str, kind.results))
    results = ", ".join(f"%{number}" for number in range(len(kind.results)))
    ends = f"return {results} : {types}" if results else "return"
    return (f'module @"{title}" attributes {{mhlo.num_partitions = {devices} : i32, '
            f'mhlo.num_replicas = 1 : i32, mhlo.spmd_parameters_shardings = [{parameters}], '
            f'mhlo.spmd_output_sharding = "{sharding}"}} {{\n'
            f"  func.func public @main({arguments}) -> ({types}) {{\n{zeros}    {ends}\n  }}\n}}\n")


def _sharding(division: Division | None) -> str:
    """Return HLO's notation for a value that is divided as ``division`` says."""
    if division is None:
        return "{replicated}"
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, part in enumerate(division.parts):
        holders.setdefault(part, []).append(device)
    copies = len(division.parts) // len(holders)
    counts = [*division.counts, copies] if copies > 1 else division.counts
    devices = [device for _, group in sorted(holders.items()) for device in group]
    return (f"{{devices=[{','.join(map(str, counts))}]{','.join(map(str, devices))}"
            f"{' last_tile_dim_replicate' if copies > 1 else ''}}}")


def _zero(type: Any) -> str:
    """Return the MLIR literal of zero in the element type of tensor type ``type``."""
    from jaxlib.mlir import ir

    element = str(ir.RankedTensorType(type).element_type)
    return "false" if element == "i1" else "0" if "i" in element else "0.0"
