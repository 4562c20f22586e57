"""Plans a program: writes its operations in order, and frees values after their last use."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.program.code.reserved import FED
from sim.compiler.program.code.resident import resident_bundles
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.context import Context
from sim.compiler.program.control.blocks import cut_rows
from sim.compiler.program.control.flow import ControlFlow
from sim.compiler.program.control.gathers import write_gather
from sim.compiler.program.control.slices import Slices
from sim.compiler.program.launch.launcher import Launcher
from sim.compiler.program.launch.prefetch import AHEAD, Upcoming
from sim.compiler.program.places.places import Home, Splat, VectorMemoryError
from sim.compiler.program.tilings import BARRIER, CONTROL, HELD
from sim.compiler.tiling import same_vectors, standard
from sim.compiler.words import to_words, uniform

__all__ = ["EXITS", "Planner"]

EXITS = 16
"""Number of bundles of instruction memory that are reserved for a segment's entries and exits."""
_ALONE = CONTROL | {"exchange", "pod_sum", BARRIER, "gather"}
"""Kinds of operations before which a sum in progress must end: they need resources that it uses."""


class Planner:
    """Turns a graph with tilings into code.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.

    Attributes
    ----------
    context : Context
        The context that was given.
    launcher : Launcher
        Writes kernels and exchanges, and records those that it has written.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._places = context.places
        self._divided: Mapping[Rows, range] = {}
        self._control = ControlFlow(context, self._region)
        self._slices = Slices(context)
        self.launcher = Launcher(context)

    def program(self, graph: Graph, inputs: Sequence[Rows],
                outputs: Sequence[Rows | None], divided: Mapping[Rows, range]) -> None:
        """Write the whole program.

        Parameters
        ----------
        graph : Graph
            The computation.
        inputs : sequence of Rows
            HBM rows of each input.
        outputs : sequence of Rows or None
            HBM rows to which each output is written; None for an output that is not written.
        divided : mapping of Rows to range
            For rows of outputs of which this core writes only a part: the vectors of that part.
            Only operations without regions may compute these outputs.

        Raises
        ------
        VectorMemoryError
            If operations do not fit vector memory; the message lists all of them.
        """
        self._places.homes.update(zip(graph.inputs, inputs, strict=True))
        parts = [operation for operation in graph.operations
                 if self._is_part(operation, graph.inputs)]
        graph = replace(graph, inputs=[*graph.inputs, *(part.result for part in parts)],
                        operations=[operation for operation in graph.operations
                                    if operation not in parts])
        wanted: dict[Value, list[Rows]] = {}
        for value, rows in zip(graph.outputs, outputs, strict=True):
            wanted.setdefault(value, []).extend([] if rows is None else [rows])
        self._divided = divided
        uses = _uses(graph, ())
        self.context.needed.update(
            (value, (divided[rows[0]],)) for value, rows in wanted.items()
            if len(rows) == 1 and rows[0] in divided and value not in uses)
        if graph.operations:
            self.context.ends.update((value, wanted[value][0])
                                     for value in graph.operations[-1].results
                                     if value in self.context.needed)
        if any("slots" in operation.attributes for operation in graph.walk()):
            self._control.reserve(FED)
        self._block(graph, wanted, ())
        if self.launcher.too_large:
            room = self.context.config.vmem_vectors
            raise VectorMemoryError(
                f"vector memory has {room} vectors, which is too small for:\n"
                + "\n".join(f"  {item}" for item in dict.fromkeys(self.launcher.too_large))
                + "\ncompute in smaller pieces, for example with jax.lax.map over slices, or "
                "choose a chip with more vector memory")
        self._places.memory.wait_all()
        self.context.stream.halt()

    @property
    def outgrows(self) -> bool:
        """Whether a loop does not stay in instruction memory, but would if no kernels were joined.

        The code of such a loop is loaded in each iteration.
        """
        room = self.context.config.imem_bundles - resident_bundles() - EXITS
        loop = self.context.stream.longest_loop
        return loop - self.launcher.joiner.growth <= room < loop

    # ---- blocks

    def _region(self, graph: Graph, early: Mapping[Value, Sequence[Rows]]) -> None:
        """Write the code of a region whose outputs are all used.

        ``early`` maps values to the HBM rows to which each is copied as soon as it is computed.
        """
        self._block(graph, early, graph.outputs)

    def _block(self, graph: Graph, early: Mapping[Value, Sequence[Rows]],
               kept: Sequence[Value]) -> None:
        """Write the code of a graph's operations.

        ``early`` maps values to the HBM rows to which each is copied as soon as it is computed;
        ``kept`` are the outputs that are used after the graph.
        """
        places, operations = self._places, graph.operations
        uses = _uses(graph, kept)
        direct = {value: rows[0] for value, rows in early.items()
                  if len(rows) == 1 and value not in kept and rows[0] not in self._divided}
        for value in graph.inputs:
            self._copy(value, early.get(value, ()))
        # Results of a sum that is done apart are not there immediately after it.
        apart = [operation for operation in operations if "meanwhile" in operation.attributes
                 and early.keys().isdisjoint(operation.results)
                 and uses.keys() >= {*operation.results}]
        sums = [operation for operation in operations if operation.kind == "pod_sum"]
        self.launcher.sums.expect(sums, apart, self._led(operations, sums, uses))
        for index, operation in enumerate(operations):
            places.distance = partial(_distance, uses, index)
            if (operation.kind in _ALONE or "in_hbm" in operation.attributes
                    or (self.launcher.sums.uses({*operation.operands})
                        and not self.launcher.sums.leads(operation))):
                self.launcher.sums.finish()
            if operation.kind in CONTROL:
                self._branching(operation,
                                {value for value, at in uses.items() if at[-1] > index}, early)
            else:
                later = [Upcoming(operations[at], self._dying(operations[at], uses, at),
                                  partial(_distance, uses, at))
                         for at in range(index + 1, min(index + 1 + AHEAD, len(operations)))]
                if operation.kind == "exchange":
                    self.launcher.exchange(operation, operations[index + 1:])
                elif operation.kind == "pod_sum":
                    self.launcher.pod_sum(operation, self._dying(operation, uses, index),
                                          apart=operation in apart)
                else:
                    self._straight(operation, later, self._dying(operation, uses, index), direct)
            for value in operation.results:
                if value not in self.launcher.stored:
                    self._copy(value, early.get(value, ()), last=value not in uses)
            for value in (*operation.operands, *operation.results):
                if uses.get(value, (-1,))[-1] <= index:
                    places.drop(value)
        self.launcher.sums.finish()

    def _led(self, operations: Sequence[Operation], sums: Sequence[Operation],
             uses: Mapping[Value, Sequence[int]]) -> Operation | None:
        """Return the program's last operation if only it uses the results of the last of ``sums``.

        It must have a result of which this core writes only some vectors. ``uses`` is the result of
        the function `_uses`.
        """
        if not sums or self.context.ends.keys().isdisjoint(operations[-1].results):
            return None
        last = {len(operations) - 1}
        alone = all({*uses.get(value, ())} == last for value in sums[-1].results)
        return operations[-1] if alone else None

    def _dying(self, operation: Operation, uses: Mapping[Value, Sequence[int]], index: int
               ) -> set[Value]:
        """Return the operands of ``operation`` whose vectors are not needed after it.

        ``index`` is the operation's index in its graph, and ``uses`` the result of the function
        `_uses`.
        """
        return {value for value in operation.operands
                if uses[value][-1] == index and value not in self._control.fixed}

    def _branching(self, operation: Operation, later: set[Value],
                   early: Mapping[Value, Sequence[Rows]]) -> None:
        """Write an operation with regions.

        ``later`` are the values used after it. ``early`` maps values to the HBM rows to
        which each is copied as soon as it is computed.
        """
        if operation.kind == "while":
            self._control.loop(operation, later, early)
        elif operation.kind == "stream":
            self._control.blocks(operation, later, early)
        else:
            self._control.conditional(operation, later)

    def _straight(self, operation: Operation, following: Sequence[Upcoming],
                  dying: set[Value], direct: Mapping[Value, Rows]) -> None:
        """Write an operation without regions.

        ``following`` are the next operations, and ``dying`` the operands not used after this one.
        ``direct`` has the HBM rows of the results that a kernel may write to HBM itself.
        """
        if operation.kind in HELD:
            self._places.homes[operation.result] = self._constant_home(operation)
        elif operation.kind == BARRIER:
            operation.attributes["meeting"].write_barrier(self.context.stream,
                                                          self._places.memory.links)
        elif operation.attributes.get("in_hbm") and operation.kind == "gather":
            write_gather(self.context, operation)
        elif operation.attributes.get("in_hbm"):
            self._slices.write(operation, dying)
        elif not self._renamed(operation, dying):
            goes = {value: direct[value] for value in operation.results if value in direct}
            self.launcher.kernel(operation, following, dying, goes)

    def _renamed(self, operation: Operation, dying: set[Value]) -> bool:
        """Let the result of a reshape take over the operand's vectors, if it needs no copy.

        Return whether it took them over. ``dying`` are the operands that are not used again.
        """
        if operation.kind != "reshape" or operation.operands[0] not in dying:
            return False
        [value], result, tilings = operation.operands, operation.result, self.context.tilings
        return same_vectors(tilings[value], tilings[result]) and self._places.rename(value, result)

    def _is_part(self, operation: Operation, inputs: Sequence[Value]) -> bool:
        """Return whether an operation slices consecutive HBM rows from an input.

        If so, these rows become the result's home, and the operation needs no code.
        """
        if operation.kind != "slice" or operation.operands[0] not in inputs:
            return False
        [value], result = operation.operands, operation.result
        cut = [along for along, size in enumerate(value.shape) if result.shape[along] != size]
        config, home = self.context.config, self._places.homes[value]
        tilings = self.context.tilings
        plain = (tilings[value] == standard(value.shape, config)
                 and tilings[result] == standard(result.shape, config))
        if len(cut) != 1 or not plain or not isinstance(home, Rows) or (
                operation.attributes["strides"][cut[0]] != 1):
            return False
        [along] = cut
        start = operation.attributes["start_indices"][along]
        if along == tilings[value].lane_dimension and start % config.lanes:
            return False
        rows = cut_rows(home, tilings[value], along, result.shape[along], start)
        if not rows.is_plain:
            return False
        self._places.homes[result] = rows
        return True

    def _copy(self, value: Value, destinations: Sequence[Rows], *, last: bool = False) -> None:
        """Start to copy a value to rows of HBM; ``last`` says that it is not used again."""
        for rows in destinations:
            divided = self._divided.get(rows)
            for part in self.context.needed.get(value, (divided,)):
                if self._places.homes.get(value) != rows and not (
                        last and len(destinations) == 1
                        and self.launcher.sums.store(value, rows, part)):
                    self._places.copy_to(value, rows, part)

    def _constant_home(self, operation: Operation) -> Home:
        tiling = self.context.tilings[operation.result]
        if operation.kind == "device_constant":
            return self.context.constants.differing(np.stack([
                tiling.pack(to_words(np.asarray(number)))
                for number in operation.attributes["values"]]))
        words = to_words(np.asarray(operation.attributes["value"]))
        if uniform(words):
            return Splat(int(words.reshape(-1)[0]))
        return self.context.constants.rows(tiling.pack(words))


def _uses(graph: Graph, kept: Sequence[Value]) -> dict[Value, list[int]]:
    """Return the indices of the operations that use each value, in ascending order.

    The outputs in ``kept`` also count as used at the end of the graph.
    """
    uses: dict[Value, list[int]] = {}
    for index, operation in enumerate(graph.operations):
        for value in operation.operands:
            uses.setdefault(value, []).append(index)
    for value in kept:
        uses.setdefault(value, []).append(len(graph.operations))
    return uses


def _distance(uses: Mapping[Value, Sequence[int]], index: int, value: Value) -> int:
    """Return the index of the first operation, from ``index`` on, that uses a value; else 2**30.

    ``uses`` is the result of `_uses`. A value that is used after the graph counts as used by an
    operation after the last one.
    """
    at = uses.get(value, ())
    following = bisect_left(at, index)
    return at[following] if following < len(at) else 1 << 30
