"""Writes the sums of values in vector memory over all cores of a pod."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.streamed import (
    Semaphores,
    StreamedSum,
    image_words,
    next_chips,
    sum_image,
)
from sim.compiler.graph.ir import Operation
from sim.compiler.graph.torus import Torus
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.builder import Builder
from sim.compiler.program.code.reserved import EXCHANGED, FREE, LINKS
from sim.compiler.program.code.transfers import Rows, scalar_words
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.records import Records
from sim.compiler.program.places.meeting import DeviceSum

__all__ = ["PodSums", "connect_sums"]

_SENT, _PAIRED = 0, 1
"""Semaphores that kernels may use freely."""
_SEMAPHORES = Semaphores(LINKS, FREE, _SENT, _PAIRED, EXCHANGED)


@dataclass(frozen=True)
class _Sum:
    """A sum whose code has been written.

    Attributes
    ----------
    shares : SumShares
        How the sum is divided.
    base : int
        Address of the workspace: the buffer in which the sum is computed, and its results stay.
    image : Rows
        Rows of HBM that hold the image: words that the sum's code reads from scalar memory. The
        first of them, `sum_image`, depend on the device.
    """

    shares: SumShares
    base: int
    image: Rows


class PodSums:
    """Writes sums over all cores of a pod.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    records : Records
        Receives a record for each sum.
    """

    def __init__(self, context: Context, records: Records) -> None:
        self._context = context
        self._places = context.places
        self._records = records
        self._sums: dict[int, _Sum] = {}

    def write(self, operation: Operation) -> None:
        """Write a ``pod_sum``.

        Raises
        ------
        VectorMemoryError
            If there is no room. The state is then as before, except that values were evicted.
        """
        context, places, memory = self._context, self._places, self._places.memory
        device: DeviceSum = operation.attributes["device"]
        torus, core, tilings = device.torus, device.core, context.tilings
        sizes = [tilings[value].vectors for value in operation.operands]
        shares = SumShares.of(context.config, (torus.width, torus.height), sum(sizes))
        places.lock(operation.operands)
        try:
            operands = [places.load(value) for value in operation.operands]
            workspace = places.allocate("sum", shares.workspace)
        finally:
            places.lock(())
        room = context.memory.kernel
        b, addresses = Builder(context.config), room[:image_words(len(room))]
        code = StreamedSum(b, shares, core, workspace, addresses, _SEMAPHORES)
        image = self._image(code, addresses, torus.devices)
        memory.wait_all()
        code.write(operands)
        self._append(operation, b, shares)
        assert device.number not in self._sums, operation
        self._sums[device.number] = _Sum(shares, workspace.address, image)
        first = workspace.address
        for value, size in zip(operation.results, sizes, strict=True):
            places.put(value, memory.buffer("value", first, size))
            first += size
        memory.release(VmemBuffer("rest", first, workspace.address + workspace.vectors - first))

    def _image(self, code: StreamedSum, addresses: range, devices: int) -> Rows:
        """Write the transfer of a sum's image to scalar memory; return the image's rows in HBM.

        ``code`` is the sum's code, ``addresses`` are the words of scalar memory for the image, and
        ``devices`` is the number of the pod's devices.
        """
        lanes, sublanes = self._context.config.lanes, self._context.config.sublanes
        rows = -(-len(addresses) // lanes)
        # A constant consists of whole vectors.
        words = code.image(-(-rows // sublanes) * sublanes * lanes)
        image = self._context.constants.differing(np.tile(
            np.array(words, np.uint32).reshape(1, -1, sublanes, lanes), (devices, 1, 1, 1)))
        self._places.memory.issue(image, scalar_words(addresses.start), rows)
        return image

    def _append(self, operation: Operation, b: Builder, shares: SumShares) -> None:
        context, machine = self._context, b.finish()
        code = emit(machine, context.config)
        first, cycles = context.stream.here, round(shares.cycles(context.config))
        context.stream.stamp()
        context.stream.kernel(code)
        self._places.memory.clock.run(cycles)
        self._records.add(KernelRecord(operation.kind, operation.location, len(code), cycles,
                                       shares.vectors * context.config.sublanes, 0, 0), first)

    def connect(self, device: int, torus: Torus, base: Callable[[int, int], int]) -> None:
        """Set the words of all images that depend on the device, for one device of this plan.

        ``base(number, other)`` is the address of the workspace of sum ``number`` on device
        ``other``.
        """
        core, *place = torus.place(device)
        x, y = place
        for number, item in self._sums.items():
            near = torus.neighbour(device, "core", 1)
            others = [near, *(torus.neighbour(device, ring, way)
                              for ring, way in next_chips(item.shares, core))]
            self._context.constants.differ(item.image, device, sum_image(
                item.shares, core, (x, y), [base(number, other) for other in others]))

    def base(self, number: int) -> int:
        """Return the address of the workspace of sum ``number`` (`DeviceSum.number`)."""
        return self._sums[number].base


def connect_sums(plans: Sequence[PodSums], torus: Torus) -> None:
    """Set the words of all images that depend on the device.

    ``plans`` has the sums of each device, in the order of the devices' numbers.
    """
    for device, sums in enumerate(plans):
        sums.connect(device, torus, lambda number, other: plans[other].base(number))
