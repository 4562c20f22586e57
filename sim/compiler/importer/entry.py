"""A module's entry function: name, donated arguments, and shardings of arguments and results."""

from dataclasses import dataclass
from typing import Any

from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.mesh import Split, split_of

__all__ = ["Cuts", "Entry", "entry_cuts", "entry_function", "halved", "read_entry"]

Cuts = tuple[Split | None, ...]
"""How each argument, or each result, is split in halves; None if both devices have all of it."""


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
        For two devices, text of a module with the same signature, which states how arguments and
        results are split; for one device, empty.
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


def entry_cuts(function: Any, module: Any) -> tuple[Cuts, Cuts]:
    """Return how the arguments and how the results of a function are split between two devices.

    ``module`` contains the function, and the meshes to which its shardings refer.

    Raises
    ------
    ValueError
        If a mesh has more than two devices, or the size of a dimension that is split is odd.
    """
    from jaxlib.mlir import ir

    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    found = []
    for types, name in ((kind.inputs, "arg_attrs"), (kind.results, "res_attrs")):
        given = function.attributes[name] if name in function.attributes else [{}] * len(types)
        cuts = [split_of(module, item["sdy.sharding"]) if "sdy.sharding" in item else None
                for item in given]
        for type, cut in zip(types, cuts, strict=True):
            if cut is not None and ir.RankedTensorType(type).shape[cut.dimension] % 2:
                raise ValueError(f"a dimension that is split between two devices must have an even "
                                 f"size, unlike dimension {cut.dimension} of {type}")
        found.append(tuple(cuts))
    return found[0], found[1]


def halved(shape: tuple[int, ...], dimension: int) -> tuple[int, ...]:
    """Return ``shape`` with the size of dimension ``dimension`` halved: a device's part."""
    return tuple(size // 2 if number == dimension else size for number, size in enumerate(shape))


def read_entry(module: Any, devices: int) -> Entry:
    """Return the `Entry` of a module that is compiled for 1 or 2 devices."""
    name, functions = entry_function(module)
    function = functions[name]
    attributes = module.operation.attributes
    title = python(attributes["sym_name"]) if "sym_name" in attributes else name
    donated: tuple[int, ...] = ()
    if "arg_attrs" in function.attributes:
        donated = tuple(number for number, item in enumerate(function.attributes["arg_attrs"])
                        if "tf.aliasing_output" in item or "jax.buffer_donor" in item)
    outline = b"" if devices == 1 else _outline(title, function, module).encode()
    return Entry(title, donated, outline)


def _outline(title: str, function: Any, module: Any) -> str:
    """Return the text of a module with a function's signature and shardings in HLO's notation.

    ``title`` becomes the name of the module. JAX reads the text to learn the shardings of arguments
    and results for which the user has specified none.
    """
    from jaxlib.mlir import ir

    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    arguments = ", ".join(f"%arg{number}: {type}" for number, type in enumerate(kind.inputs))
    given, made = ([_sharding(cut, len(ir.RankedTensorType(type).shape))
                    for type, cut in zip(types, cuts, strict=True)]
                   for types, cuts in zip((kind.inputs, kind.results),
                                          entry_cuts(function, module), strict=True))
    parameters = ", ".join(f'"{sharding}"' for sharding in given)
    sharding = made[0] if len(made) == 1 else f"{{{', '.join(made)}}}"
    zeros = "".join(f"    %{number} = stablehlo.constant dense<{_zero(type)}> : {type}\n"
                    for number, type in enumerate(kind.results))
    types = ", ".join(map(str, kind.results))
    results = ", ".join(f"%{number}" for number in range(len(kind.results)))
    ends = f"return {results} : {types}" if results else "return"
    return (f'module @"{title}" attributes {{mhlo.num_partitions = 2 : i32, '
            f'mhlo.num_replicas = 1 : i32, mhlo.spmd_parameters_shardings = [{parameters}], '
            f'mhlo.spmd_output_sharding = "{sharding}"}} {{\n'
            f"  func.func public @main({arguments}) -> ({types}) {{\n{zeros}    {ends}\n  }}\n}}\n")


def _sharding(cut: Split | None, rank: int) -> str:
    """Return HLO's notation for a value with ``rank`` dimensions that is split as ``cut`` says."""
    if cut is None:
        return "{replicated}"
    parts = ",".join("2" if number == cut.dimension else "1" for number in range(rank))
    return f"{{devices=[{parts}]{','.join(map(str, cut.group))}}}"


def _zero(type: Any) -> str:
    """Return the MLIR literal of zero in the element type of tensor type ``type``."""
    from jaxlib.mlir import ir

    element = str(ir.RankedTensorType(type).element_type)
    return "false" if element == "i1" else "0" if "i" in element else "0.0"
