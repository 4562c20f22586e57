"""The compiler's intermediate representation: types, values, operations and graphs.

A graph is in static single assignment form: every value is an input or the result of one operation.
Operations are listed in an order in which they can be executed. Kinds of operations and their
attributes are those of StableHLO, without the dialect's name: ``add``, ``dot_general``. Attributes
are plain Python values. The compiler adds other kinds, such as ``fusion``, a region of elementwise
operations; ``relayout``, a copy to another tiling; and ``stream``, a region that is applied to
blocks of its operands. `sim.compiler.graph.kinds` lists all kinds.

A graph with a `Sharding` is executed by several devices: the two cores of a chip, or the cores of
all chips of a pod. A ``pod_sum`` adds one value from each device of a pod; each device gets the
sum. Three kinds of operations differ between devices. ``by_device`` has an operand for each device,
and returns operand number d on device d. A ``device_constant`` is the scalar ``values[d]`` on
device d. An ``exchange`` has an operand for each device, too: device d sends operand number d, and
receives as its result what device ``sources[d]`` sends. The attribute ``sources`` is a permutation
of the devices; by default it swaps two devices. All devices execute the same exchanges in the same
order.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sim.compiler.graph.torus import PodSharding, Torus

__all__ = ["STACKED", "DType", "Graph", "Location", "Operation", "Sharding", "TensorType",
           "Value"]

STACKED = -1
"""Marks in a `Sharding` that the host array has a first dimension of size 2, with one index for
each device.
"""


class DType(Enum):
    """Element types; values of the enum are the types' names in MLIR, as in ``tensor<4xf32>``.

    On the device every element is a word of 32 bits. A bf16 number is stored as the fp32 number of
    the same value, an integer is extended to 32 bits, and a predicate is 0 or 1.
    """

    F32 = "f32"
    BF16 = "bf16"
    S32 = "i32"
    U32 = "ui32"
    PRED = "i1"
    S8 = "i8"
    U8 = "ui8"
    S16 = "i16"
    U16 = "ui16"

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in (DType.F32, DType.BF16)

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type; a predicate is not an integer."""
        return not self.is_float and self is not DType.PRED

    @property
    def is_signed(self) -> bool:
        """Whether this is a signed integer type."""
        return self in (DType.S8, DType.S16, DType.S32)

    @property
    def bits(self) -> int:
        """Width of the type in bits in the user's program, not on the device; 1 for a predicate."""
        return {DType.PRED: 1, DType.BF16: 16, DType.S8: 8, DType.U8: 8, DType.S16: 16,
                DType.U16: 16}.get(self, 32)


@dataclass(frozen=True)
class TensorType:
    """Type of a value: a shape and an element type.

    Attributes
    ----------
    shape : tuple of int
        Sizes of the dimensions; each is 0 or more.
    dtype : DType
        Type of the elements.
    """

    shape: tuple[int, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype.value])


@dataclass(frozen=True)
class Location:
    """Line of the user's source that an operation comes from.

    Attributes
    ----------
    file : str
        Path of the source file, or an empty string if it is unknown.
    line : int
        Line number from 1, or 0 if it is unknown.
    name : str
        Name of the operation as the front end gives it, for instance ``jit(f)/dot_general``.
        A location may stand for several joined kernels. Its file and line are then those of the
        kernel with the most cycles; its name is the word "and", followed by the lines of the other
        kernels.
    """

    file: str = ""
    line: int = 0
    name: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return f"{place} ({self.name})" if place and self.name else place or self.name


@dataclass(eq=False)
class Value:
    """A value of a graph; values are compared by identity.

    Attributes
    ----------
    type : TensorType
        Shape and element type.
    name : str
        Name of the value in dumps; may be empty, because dumps also number values.
    """

    type: TensorType
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self.type.dtype


@dataclass(eq=False)
class Operation:
    """An operation of a graph.

    Attributes
    ----------
    kind : str
        Kind of the operation, a key of `sim.compiler.graph.kinds.KINDS`, such as ``add``.
    operands, results : tuple of Value
        The values that the operation reads, and those that it defines.
    attributes : dict
        Attributes by StableHLO's names. Values are plain Python values: integers, strings, tuples,
        enums, numpy arrays.
    regions : tuple of Graph
        Graphs that the operation applies, such as the body of a loop or the reducer of a reduction.
        A region reads only its own inputs; values of the outer graph are passed as operands.
    location : Location or None
        Line of the user's source; None if it is unknown.
    """

    kind: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: "tuple[Graph, ...]" = ()
    location: Location | None = None

    @property
    def result(self) -> Value:
        """The only result of the operation.

        Raises
        ------
        ValueError
            If the operation does not have exactly one result.
        """
        if len(self.results) != 1:
            raise ValueError(f"number of results of {self.kind} must be 1, "
                             f"not {len(self.results)}")
        return self.results[0]


@dataclass(frozen=True)
class Sharding:
    """How the host's arrays are split between the devices of a graph.

    Without ``pod``, the devices are the two cores of a chip. With ``pod``, they are the cores of
    all chips of a pod: ``pod`` says how the arrays are split between the devices, ``inputs`` and
    ``outputs`` how one chip's part is divided between its cores.

    Attributes
    ----------
    inputs, outputs : tuple of (int or None)
        For each input and output of a chip: the dimension along which the array is split in halves
        (only without ``pod``); `STACKED`, if the array has a first dimension of size 2 with one
        index for each core; or None, if both cores have the whole array.
    pod : PodSharding, optional
        How the host's arrays are split between the devices of a pod.
    """

    inputs: "tuple[int | None, ...]"
    outputs: "tuple[int | None, ...]"
    pod: PodSharding | None = None

    @property
    def torus(self) -> Torus:
        """The torus of chips that executes the graph."""
        return Torus() if self.pod is None else self.pod.torus


@dataclass(eq=False)
class Graph:
    """A program or a region: operations that compute outputs from inputs.

    Attributes
    ----------
    inputs : list of Value
        Values that the caller provides.
    operations : list of Operation
        The operations, in an order in which they can be executed.
    outputs : list of Value
        Values that the graph returns; a value may occur several times, and may be an input.
    name : str
        Name of the graph in dumps and messages.
    sharding : Sharding or None
        For a program for several devices, how the host's arrays are split; the values then have
        the shapes of one device's parts. None for a program for one device.
    """

    inputs: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    name: str = "main"
    sharding: Sharding | None = None

    def add(self, kind: str, operands: Sequence[Value], type: "TensorType | Sequence[TensorType]",
            attributes: Mapping[str, Any] | None = None, regions: "Sequence[Graph]" = (),
            location: Location | None = None) -> Operation:
        """Append an operation, with new values as its results.

        Parameters
        ----------
        kind, operands, attributes, regions, location
            As in `Operation`.
        type : TensorType or sequence of TensorType
            Types of the results.

        Returns
        -------
        Operation
            The new operation.
        """
        types = [type] if isinstance(type, TensorType) else list(type)
        operation = Operation(kind, tuple(operands), tuple(map(Value, types)),
                              dict(attributes or {}), tuple(regions), location)
        self.operations.append(operation)
        return operation

    def copy(self) -> "Graph":
        """Return a copy with new operations and regions, but the same values."""
        operations = [Operation(operation.kind, operation.operands, operation.results,
                                dict(operation.attributes),
                                tuple(region.copy() for region in operation.regions),
                                operation.location) for operation in self.operations]
        return Graph(list(self.inputs), operations, list(self.outputs), self.name, self.sharding)

    def renewed(self) -> "Graph":
        """Return a copy with new operations, regions and values."""
        new = {value: Value(value.type, value.name) for value in (
            *self.inputs, *(result for operation in self.operations
                            for result in operation.results))}
        operations = [Operation(operation.kind, tuple(new[value] for value in operation.operands),
                                tuple(new[value] for value in operation.results),
                                dict(operation.attributes),
                                tuple(region.renewed() for region in operation.regions),
                                operation.location) for operation in self.operations]
        return Graph([new[value] for value in self.inputs], operations,
                     [new[value] for value in self.outputs], self.name, self.sharding)

    def producers(self) -> dict[Value, Operation]:
        """Return the operation that defines each value; inputs are missing."""
        return {result: operation for operation in self.operations for result in operation.results}

    def users(self) -> dict[Value, list[Operation]]:
        """Return the operations that read each value, in order and without duplicates.

        Values that no operation of the graph reads are missing. Regions are not searched.
        """
        found: dict[Value, list[Operation]] = {}
        for operation in self.operations:
            for operand in dict.fromkeys(operation.operands):
                found.setdefault(operand, []).append(operation)
        return found

    def walk(self) -> Iterator[Operation]:
        """Yield all operations; those in a region follow the operation that contains the region."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.walk()
