"""The golden core: executes programs bundle by bundle, without timing.

The golden core specifies hdl/core with its units, and executes what `hdl/isa.py` and
`docs/numerics.md` define. Hardware overlaps bundles, but a program cannot observe that. After a
program, the architectural state of a core equals that of the golden core, bit for bit.
"""

from collections.abc import Iterable
from operator import call
from typing import Any

from numpy.typing import NDArray

from golden.dma import Descriptor
from golden.execute import Decoded, Decoder
from golden.state import WORD_MASK, ArchitecturalState
from hdl import isa
from hdl.checks import instance, integer
from hdl.config import Config
from hdl.isa import Fault

__all__ = ["GoldenCore"]

_CACHED_BUNDLES = 1024
"""The cache of decoded bundles holds at least this many before it is cleared."""


class GoldenCore(ArchitecturalState):
    """A core as a program sees it: its state, and the execution of bundles.

    A transfer takes place as a whole, after all other operations of the bundle that starts it. A
    program that waits for the transfer's semaphore before it accesses the transfer's source and
    destination gets the same results as in hardware; for other programs, hardware may behave
    differently. A transfer or a signal to another chip is only appended to ``egress``, from which a
    `golden.torus.pod.GoldenPod` takes it.

    Parameters
    ----------
    config, hbm
        As in `ArchitecturalState`.

    Raises
    ------
    TypeError, ValueError
        As `ArchitecturalState`.
    """

    def __init__(self, config: Config, hbm: NDArray[Any] | None = None) -> None:
        super().__init__(config, hbm)
        self._decoder: Decoder | None = None
        self._cache: dict[int, Decoded] = {}

    def connect(self, other: "GoldenCore") -> None:
        """Join this core and ``other`` to one chip, so that each can access the other.

        A core that is not connected is the only core of its chip.

        Raises
        ------
        TypeError
            If ``other`` is not a `GoldenCore`.
        ValueError
            If ``other`` is this core, or one of the two is connected already; if the two differ in
            parameters, or do not share one array ``hbm``; if ``config.cores`` is not 2.
        """
        instance("other", other, GoldenCore)
        if other is self:
            raise ValueError("other must be another core, not this one")
        if self.peer is not None or other.peer is not None:
            raise ValueError("other and this core must not be connected already")
        if self.config != other.config:
            raise ValueError(f"other must have {self.config!r}, not {other.config!r}")
        if self.config.cores != 2:
            raise ValueError(f"config.cores must be 2, not {self.config.cores!r}")
        if self.hbm is not other.hbm:
            raise ValueError("other must share this core's array hbm")
        self.set_peer(other)
        other.set_peer(self)

    def set_peer(self, peer: ArchitecturalState) -> None:
        """Make ``peer`` the other core of this core's chip; ``peer`` itself does not change."""
        super().set_peer(peer)
        # They were decoded for a chip of one core.
        self.forget_bundles()

    def forget_bundles(self) -> None:
        """Drop the decoder and the decoded bundles; the core makes them again when it needs them.

        They refer to the core, which refers to them. So without this call, the many objects of an
        unused core stay in memory until Python's garbage collector finds them.
        """
        self._cache.clear()
        self._decoder = None

    def load_program(self, bundles: Iterable[int], at: int = 0) -> None:
        """Write bundles into instruction memory; other addresses keep their bundles.

        Parameters
        ----------
        bundles : iterable of int
            Bundles in the format of `hdl.encoding.pack`.
        at : int
            Address of the first bundle.

        Raises
        ------
        TypeError
            If a bundle or the address is not an integer.
        ValueError
            If a bundle has too many bits, or the bundles do not fit the memory.
        """
        new = list(bundles)
        size = self._config.imem_bundles
        integer("at", at, 0, size)
        for number, bundle in enumerate(new):
            if not 0 <= integer(f"bundle {number}", bundle) < 1 << isa.BUNDLE_BITS:
                raise ValueError(f"bundle {number} must fit {isa.BUNDLE_BITS} bits, "
                                 f"not {bundle:#x}")
        if at + len(new) > size:
            raise ValueError(f"bundles must lie within {size} bundles of instruction memory, "
                             f"not take {len(new)} from address {at} on")
        self.program[at:at + len(new)] = map(int, new)

    def start(self, pc: int = 0) -> None:
        """Start execution at the bundle with address ``pc``; clear the fault, keep all other state.

        If ``pc`` is beyond instruction memory, the first `step` stops with the fault PC_RANGE.

        Parameters
        ----------
        pc : int
            A word of 32 bits.

        Raises
        ------
        TypeError, ValueError
            If ``pc`` is not an integer, or out of range.
        RuntimeError
            If a program is running. (Hardware ignores the start in that case.)
        """
        integer("pc", pc, 0, WORD_MASK)
        if self.running:
            raise RuntimeError(
                f"a program is running, at bundle {self.pc}: stop it to start a program")
        self.pc = int(pc)
        self.running = True
        self.waiting = False
        self.fault = Fault.NONE

    def reset(self) -> None:
        """Reset the core: stop, and clear pc, fault, semaphores, egress, and the whole array.

        Memories, registers and the transposer keep their contents.
        """
        self.running = self.waiting = False
        self.pc = 0
        self.fault = Fault.NONE
        self.semaphores[:] = 0
        self.egress.clear()
        self.clear_array()

    def transfer(self, descriptor: Descriptor) -> Fault:
        """Execute a transfer that the host requests, and add to the semaphores that it signals.

        Returns
        -------
        Fault
            The descriptor's fault. Unless it is `Fault.NONE`, the transfer has no effect.

        Raises
        ------
        TypeError
            If ``descriptor`` is not a `Descriptor`.
        """
        instance("descriptor", descriptor, Descriptor)
        fault = descriptor.check(self.config, self.cores, self.torus)
        if fault is Fault.NONE:
            self.execute_transfer(descriptor)
        return fault

    def step(self) -> bool:
        """Execute one bundle, as a whole or not at all.

        The faults of the bundle are checked first, in the state that earlier bundles left, and then
        the semaphore that it waits for. After that, all operations of the bundle read their
        operands before any of them writes its result.

        Returns
        -------
        bool
            Whether the bundle was executed. False if the core is stopped, waits for a semaphore
            (``waiting``), or has just stopped with a fault.
        """
        return self._execute(1) == 1

    def run(self, max_bundles: int) -> int:
        """Execute bundles until the core stops or waits for a semaphore.

        Parameters
        ----------
        max_bundles : int
            Maximum number of bundles to execute.

        Returns
        -------
        int
            Number of bundles executed; a halting bundle counts, a faulting one does not.

        Raises
        ------
        TypeError, ValueError
            If ``max_bundles`` is not an integer, or negative.
        """
        return self._execute(integer("max_bundles", max_bundles, 0))

    def _execute(self, max_bundles: int) -> int:
        program, decoded = self.program, self._cache.get
        for executed in range(max_bundles):
            if not self.running:
                return executed
            self.waiting = False
            if self.pc >= len(program):
                self.stop(Fault.PC_RANGE)
                return executed
            bundle = program[self.pc]
            checks, wait, computes, commits = decoded(bundle) or self._decode(bundle)
            for fault, failed in checks:
                if failed():
                    self.stop(fault)
                    return executed
            if wait is not None:
                index, least = wait
                if self.semaphores.item(index) < least():
                    self.waiting = True
                    return executed
            # `map` takes half the time of a list comprehension and a loop.
            values = list(map(call, computes))
            self.pc += 1
            for _ in map(call, commits, values):
                pass
        return max_bundles

    def read_state(self, *, array: bool = True) -> dict[str, Any]:
        """Copy the parts of the core's state that are named under *Returns*.

        Parameters
        ----------
        array : bool
            Whether to include the array's counts, which a host of real hardware cannot read.

        Returns
        -------
        dict
            ``scalars``, ``vectors``, ``masks``, ``vmem``, ``smem``, ``semaphores``, ``pc``,
            ``running`` and ``fault``; with ``array`` also ``loaded``, ``active`` and ``held``.
        """
        state: dict[str, Any] = {
            "scalars": self.scalars.copy(),
            "vectors": self.vectors.copy(),
            "masks": self.masks.copy(),
            "vmem": self.vmem.copy(),
            "smem": self.smem.copy(),
            "semaphores": self.semaphores.copy(),
            "pc": self.pc,
            "running": self.running,
            "fault": self.fault,
        }
        if array:
            state.update(loaded=self.loaded, active=self.active, held=self.held)
        return state

    def _decode(self, bundle: int) -> Decoded:
        # The cache is bounded, because a program may overwrite its own bundles without end.
        if len(self._cache) >= max(_CACHED_BUNDLES, len(self.program)):
            self._cache.clear()
        if self._decoder is None:
            self._decoder = Decoder(self)
        decoded = self._decoder.decode(bundle)
        self._cache[bundle] = decoded
        return decoded
