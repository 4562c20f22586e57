"""Allocation of the vectors that a kernel uses."""

from collections.abc import Collection, Mapping

from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.lowering import Place
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.context import Context

__all__ = ["KernelBuffers"]


class KernelBuffers:
    """Buffers of a kernel's operands, results and scratch in vector memory.

    All methods that allocate vectors raise `sim.compiler.program.places.places.VectorMemoryError`
    if there is no room.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    operation : Operation
        The operation that the kernel computes.
    goes : mapping of Value to Rows
        For each result that must be copied to HBM, the destination rows.

    Attributes
    ----------
    places : dict of Value to Place
        Buffer and tiling of each operand and result.
    own : list of VmemBuffer
        Scratch buffers of the kernel, freed after it.
    homes : dict of Value to Rows
        HBM rows of operands that the kernel may load itself, and of results that it may store.
    """

    def __init__(self, context: Context, operation: Operation, goes: Mapping[Value, Rows]) -> None:
        self._context = context
        self._operation = operation
        # Values whose vectors were allocated here; and those of them whose load has not started.
        self._made: list[Value] = []
        self._absent: list[Value] = []
        self.places: dict[Value, Place] = {}
        self.own: list[VmemBuffer] = []
        self.homes = {value: rows for value, rows in goes.items()
                      if context.own_transfers and rows.is_plain}

    def take_operands(self) -> None:
        """Allocate vectors of operands; start to load those that the kernel cannot load itself."""
        places = self._context.places
        for value in dict.fromkeys(self._operation.operands):
            home = places.absent(value) if self._context.own_transfers else None
            if home is None:
                self._put(value, places.load(value))
            else:
                self.homes[value] = home
                self._put(value, places.reserve_absent(value))
                self._absent.append(value)
                self._made.append(value)

    def take_results(self, inherited: Mapping[Value, Value]) -> None:
        """Allocate vectors of results.

        ``inherited`` maps a result to the operand whose vectors it takes over instead.
        """
        for value in self._operation.results:
            if value in inherited:
                self.places[value] = self.places[inherited[value]]
                continue
            self._put(value, self._context.places.make(value))
            self._made.append(value)

    def _put(self, value: Value, buffer: VmemBuffer) -> None:
        self.places[value] = Place(buffer, self._context.tilings[value])

    def allocate(self, name: str, vectors: int) -> VmemBuffer:
        """Allocate a scratch buffer of ``vectors`` vectors for the kernel.

        The buffer's name begins with ``name``.
        """
        buffer = self._context.places.allocate(name, vectors)
        self.own.append(buffer)
        return buffer

    def load_absent(self, transferred: Collection[Value]) -> None:
        """Start to load the operands that the kernel could load itself, but does not.

        ``transferred`` are the values that it does load or store itself.
        """
        for value in self._absent:
            if value not in transferred:
                self._context.places.load_absent(value)

    def give_back(self) -> None:
        """Free all vectors that this object has allocated."""
        for value in self._made:
            self._context.places.unmake(value)
        for buffer in self.own:
            self._context.places.memory.release(buffer)
