"""The golden machine: executes programs bundle by bundle, without time.

`hdl/isa.py` and `docs/numerics.md` are the texts that it executes. Hardware overlaps bundles, but
a program cannot see it; so all architectural state of a core after a program is that of this
machine, bit for bit.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden import dma, xlu
from golden.dma import Descriptor
from golden.mxu import tile_matmul
from golden.numerics import bf16, to_bf16
from golden.vpu import compare, evaluate
from hdl import isa
from hdl.checks import integer
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.encoding import unpack
from hdl.isa import (
    BUNDLE_PITCH,
    Fault,
    Kind,
    LoadOp,
    MiscOp,
    Operation,
    PushOp,
    ScalarOp,
    Slot,
    Unit,
    VectorOp,
)

__all__ = ["GoldenCore"]

_MASK32 = 0xFFFFFFFF

_CACHED_BUNDLES = 1024
"""Least number of decoded bundles that are kept."""
_CACHED_DESCRIPTORS = 256
"""Most descriptors that are kept with what is wrong with them."""

# Arrays of uint32. Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]
# Names, because annotations of inner functions are evaluated each time.
_Bits = NDArray[np.bool_]
_Rows = NDArray[Any]
_SmemStore = tuple[int, int]
_VmemStore = tuple[int, _Words, _Bits]
_Target = int | None
_Number = Callable[[], int]
_Register = Callable[[], _Words]
_Check = tuple[Fault, Callable[[], bool]]
_Action = tuple[Callable[[], Any], Callable[[Any], None]]
"""What an operation computes from the state before the bundle, and what it does with that."""


@dataclass(frozen=True)
class _Decoded:
    """A bundle, ready to be executed.

    Attributes
    ----------
    checks : tuple of Fault and callable
        Conditions on the state under which the bundle has that fault, by the fault's number.
    wait : semaphore and least value, or None
    actions : tuple of pairs of callables
        All first ones are called before any second, which gets what the first returned.
    """

    checks: tuple[_Check, ...]
    wait: tuple[int, _Number] | None
    actions: tuple[_Action, ...]


@dataclass
class _Result:
    """Rows that were pushed, and their product once somebody wants it."""

    rows: NDArray[Any]
    weights: NDArray[Any]
    value: _Words | None = None


def _check_hbm(hbm: object, config: Config) -> None:
    if not isinstance(hbm, np.ndarray) or hbm.dtype != np.uint32:
        raise TypeError(f"hbm must be an array of uint32, not {hbm!r}")
    shape = config.hbm_rows, config.lanes
    if hbm.shape != shape or not hbm.flags.c_contiguous:
        raise ValueError(f"hbm must be contiguous and of shape {shape}, not {hbm.shape}")


class GoldenCore:
    """A core as a program sees it.

    A transfer is done, all of it, when the bundle that starts it has done everything else. So
    programs that wait for a transfer's semaphore before they touch what it reads and writes do what
    they do in hardware; for others, this is one of the things that can happen.

    Everything is zero at first, but m0. The arrays may be read and written in place between
    bundles, except for s0 and m0; the numbers must not be assigned to.

    Parameters
    ----------
    config : Config
        Parameters of the core, as given by `config`.
    hbm : array of uint32, shape (hbm_rows, lanes), or None
        The memory that cores share; None for one of its own, made when it is first used.

    Attributes
    ----------
    scalars : array of uint32, shape (32,)
        Scalar registers.
    vectors : array of uint32, shape (32, sublanes, lanes)
        Vector registers.
    masks : array of bool, shape (8, sublanes, lanes)
        Mask registers.
    vmem : array of uint32, shape (vmem_vectors, sublanes, lanes)
        Vector memory.
    smem : array of uint32, shape (smem_words,)
        Scalar memory.
    semaphores : array of uint32, shape (16,)
        Semaphores.
    program : list of int
        Instruction memory: a bundle for each address. Written by `load_program`.
    transposer : array of uint32, shape (lanes, lanes)
        Tile of the cross-lane unit's transposer.
    next_weights : array of bfloat16, shape (lanes, lanes)
        The weight tile that is being loaded; only what was pushed means something.
    loaded : int
        Pushes of that load, 0 to ``config.tile_vregs``.
    transposed : bool
        Whether the load is of transposed weights; means something if ``loaded`` is not 0.
    weights : array of bfloat16, shape (lanes, lanes)
        The active weight tile.
    active : bool
        Whether there has been a swap: before the first one, ``weights`` means nothing.
    pc : int
        The bundle to be executed next; after a halt the halting bundle, after a fault the one that
        has it.
    running : bool
        Started and neither halted, stopped, nor at fault.
    waiting : bool
        The bundle at ``pc`` was tried, and its semaphore is too low.
    fault : Fault
        Why the machine stopped, if by itself.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`, or ``hbm`` no array of uint32.
    ValueError
        If ``hbm`` is of another shape.
    """

    def __init__(self, config: Config, hbm: _Words | None = None) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a Config, not {config!r}")
        if hbm is not None:
            _check_hbm(hbm, config)
        self._config = config
        self._hbm = hbm
        self._peer: GoldenCore | None = None
        lanes, shape = config.lanes, (config.sublanes, config.lanes)
        self.scalars: _Words = np.zeros(isa.SCALAR_REGISTERS, np.uint32)
        self.vectors: _Words = np.zeros((isa.VECTOR_REGISTERS, *shape), np.uint32)
        self.masks = np.zeros((isa.MASKS, *shape), np.bool_)
        self.masks[0] = True
        self.vmem: _Words = np.zeros((config.vmem_vectors, *shape), np.uint32)
        self.smem: _Words = np.zeros(config.smem_words, np.uint32)
        self.semaphores: _Words = np.zeros(isa.SEMAPHORES, np.uint32)
        self.program: list[int] = [0] * config.imem_bundles
        self.transposer: _Words = np.zeros((lanes, lanes), np.uint32)
        self.next_weights: NDArray[Any] = np.zeros((lanes, lanes), bf16)
        self.loaded = 0
        self.transposed = False
        self.weights: NDArray[Any] = np.zeros((lanes, lanes), bf16)
        self.active = False
        self._results: deque[_Result] = deque()
        self.pc = 0
        self.running = False
        self.waiting = False
        self.fault = Fault.NONE
        self._decoder = _Decoder(self)
        self._cache: dict[int, _Decoded] = {}
        self._descriptors: dict[bytes, tuple[Descriptor, Fault]] = {}

    @property
    def config(self) -> Config:
        """The core's parameters."""
        return self._config

    @property
    def hbm(self) -> _Words:
        """The memory that cores share: uint32, shape (hbm_rows, lanes). May be written in place."""
        if self._hbm is None:
            self._hbm = dma.allocate_hbm(self._config)
        return self._hbm

    @property
    def peer(self) -> "GoldenCore | None":
        """The other core, if there is one."""
        return self._peer

    @property
    def held(self) -> int:
        """Registers of results that were pushed for and not popped."""
        return len(self._results)

    @property
    def results(self) -> list[NDArray[np.uint32]]:
        """Copies of these results, the oldest first; each of shape (sublanes, lanes)."""
        while any(result.value is None for result in self._results):
            self._multiply()
        return [result.value.copy() for result in self._results if result.value is not None]

    def connect(self, other: "GoldenCore") -> None:
        """Makes two machines the cores of one chip: each reaches the other.

        Without that, a machine is a chip's only core.

        Raises
        ------
        TypeError
            If ``other`` is not a `GoldenCore`.
        ValueError
            If it is this one, either has another core already, or they differ in parameters or HBM;
            if the parameters are those of a chip of one core.
        """
        if not isinstance(other, GoldenCore):
            raise TypeError(f"other must be a GoldenCore, not {other!r}")
        if other is self:
            raise ValueError("other must be another machine than this one")
        if self._peer is not None or other._peer is not None:
            raise ValueError("other must be connected once only, and so must this machine")
        if self._config != other._config:
            raise ValueError(f"other must be of {self._config!r}, not {other._config!r}")
        if self._config.cores != 2:
            raise ValueError(f"cores must be 2 to connect two, not {self._config.cores!r}")
        if self.hbm is not other.hbm:
            raise ValueError("other must have the same HBM as this machine")
        for one, two in ((self, other), (other, self)):
            one._peer = two
            # What is cached was found out for a chip of one core.
            one._cache.clear()
            one._descriptors.clear()

    def load_program(self, bundles: Iterable[int], at: int = 0) -> None:
        """Writes bundles into the instruction memory; what is beyond them stays.

        Parameters
        ----------
        bundles : iterable of int
            As `hdl.encoding.pack` makes them.
        at : int
            Address of the first.

        Raises
        ------
        TypeError
            If a bundle or the address is not an integer.
        ValueError
            If a bundle has too many bits, or the memory too few bundles.
        """
        new = list(bundles)
        size = self._config.imem_bundles
        integer("at", at, 0, size)
        for number, bundle in enumerate(new):
            if not 0 <= integer(f"bundle {number}", bundle) < 1 << isa.BUNDLE_BITS:
                raise ValueError(f"bundle {number} must fit {isa.BUNDLE_BITS} bits, "
                                 f"not {bundle:#x}")
        if at + len(new) > size:
            raise ValueError(f"bundles must lie within {size} bundles, not {len(new)} from {at} on")
        self.program[at:at + len(new)] = map(int, new)

    def start(self, pc: int = 0) -> None:
        """Runs from a bundle on, and clears the fault; all other state stays.

        Beyond the instruction memory, the first step has the fault.

        Parameters
        ----------
        pc : int
            A word of 32 bits.

        Raises
        ------
        TypeError, ValueError
            If it is not.
        RuntimeError
            If a program runs. (The hardware ignores a start then.)
        """
        integer("pc", pc, 0, _MASK32)
        if self.running:
            raise RuntimeError(f"a program runs, at bundle {self.pc}: stop it to start a program")
        self.pc = int(pc)
        self.running = True
        self.waiting = False
        self.fault = Fault.NONE

    def stop(self, fault: Fault = Fault.NONE) -> None:
        """Stops ahead of the next bundle; `start` at ``pc`` goes on.

        Parameters
        ----------
        fault : Fault
            Why, if not without one: what only a clock can tell, `Fault.WATCHDOG`.

        Raises
        ------
        TypeError
            If it is not a `Fault`.
        """
        if not isinstance(fault, Fault):
            raise TypeError(f"fault must be a Fault, not {fault!r}")
        self._stop(fault)

    def reset(self) -> None:
        """Stops, and sets to zero what a reset does: pc, fault, semaphores, and the whole array.

        Memories, registers and the transposer stay.
        """
        self.running = self.waiting = self.active = self.transposed = False
        self.pc = self.loaded = 0
        self.fault = Fault.NONE
        self.semaphores[:] = 0
        self._results.clear()

    def signal(self, index: int, amount: int = 1) -> None:
        """Adds to a semaphore from outside of the program.

        If that would carry it beyond 32 bits, it stays as it is, and the machine stops with
        `Fault.SEMAPHORE` at the bundle that would have been next. A machine that stands gets the
        fault, too, unless it has one already.

        Parameters
        ----------
        index : int
            Number of the semaphore.
        amount : int
            A word of 32 bits.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another type or out of range.
        """
        integer("index", index, 0, isa.SEMAPHORES - 1)
        integer("amount", amount, 0, _MASK32)
        total = int(self.semaphores[index]) + int(amount)
        if total > _MASK32:
            self._stop(Fault.SEMAPHORE)
        else:
            self.semaphores[index] = total

    def transfer(self, descriptor: Descriptor) -> Fault:
        """Does a transfer from outside of the program, semaphores included.

        Returns
        -------
        Fault
            What is wrong with the descriptor; then nothing was done.

        Raises
        ------
        TypeError
            If it is not a `Descriptor`.
        """
        if not isinstance(descriptor, Descriptor):
            raise TypeError(f"descriptor must be a Descriptor, not {descriptor!r}")
        fault = descriptor.check(self._config, self._cores)
        if fault is Fault.NONE:
            self._transfer(descriptor)
        return fault

    def step(self) -> bool:
        """Executes one bundle, all of it or nothing.

        First its faults are looked for in the state before it, then its semaphore is. Then all its
        operations read, and only then they write.

        Returns
        -------
        bool
            Whether the bundle was executed: not if the machine does not run, waits for a semaphore
            (``waiting``), or has just stopped with a fault.
        """
        if not self.running:
            return False
        self.waiting = False
        if self.pc >= len(self.program):
            self._stop(Fault.PC_RANGE)
            return False
        decoded = self._decode(self.program[self.pc])
        for fault, failed in decoded.checks:
            if failed():
                self._stop(fault)
                return False
        if decoded.wait is not None:
            index, least = decoded.wait
            if self.semaphores.item(index) < least():
                self.waiting = True
                return False
        values = [compute() for compute, _ in decoded.actions]
        self.pc += 1
        for (_, commit), value in zip(decoded.actions, values, strict=True):
            commit(value)
        return True

    def run(self, max_bundles: int) -> int:
        """Executes bundles until the machine stops or waits for a semaphore.

        Parameters
        ----------
        max_bundles : int
            How many at most.

        Returns
        -------
        int
            How many were executed; the halting bundle counts, a faulting one does not.

        Raises
        ------
        TypeError, ValueError
            If ``max_bundles`` is not an integer, or negative.
        """
        integer("max_bundles", max_bundles, 0)
        executed = 0
        while executed < max_bundles and self.step():
            executed += 1
        return executed

    def read_state(self, *, array: bool = True) -> dict[str, Any]:
        """A copy of all architectural state of the core, without HBM and instruction memory.

        Parameters
        ----------
        array : bool
            Also what the array's rules count, which a host of real hardware cannot read.

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

    def _stop(self, fault: Fault) -> None:
        """Stops, or stands still, for a reason; the first since the last start is kept."""
        if self.fault is Fault.NONE:
            self.fault = fault
        self.running = False
        self.waiting = False

    def _decode(self, bundle: int) -> _Decoded:
        decoded = self._cache.get(bundle)
        if decoded is None:
            # A program that is changed all the time must not fill the host's memory.
            if len(self._cache) >= max(_CACHED_BUNDLES, len(self.program)):
                self._cache.clear()
            decoded = self._decoder.decode(bundle)
            self._cache[bundle] = decoded
        return decoded

    # What the decoder's operations do with transfers.

    @property
    def _cores(self) -> int:
        return 1 if self._peer is None else 2

    def _descriptor(self, address: int) -> tuple[Descriptor, Fault]:
        """The descriptor at an address of scalar memory, and what is wrong with it."""
        words = self.smem[address:address + DESCRIPTOR_WORDS]
        key = words.tobytes()
        found = self._descriptors.get(key)
        if found is None:
            if len(self._descriptors) >= _CACHED_DESCRIPTORS:
                self._descriptors.clear()
            descriptor = Descriptor.unpack(words)
            found = descriptor, descriptor.check(self._config, self._cores)
            self._descriptors[key] = found
        return found

    def _transfer(self, descriptor: Descriptor) -> None:
        """Copies, then signals. The descriptor has no fault."""
        memories: dict[DmaSpace, _Words] = {
            side.space: self._memory(side.space)
            for side in (descriptor.source, descriptor.destination)
            if side.space is not DmaSpace.IMEM}
        if descriptor.destination.space is DmaSpace.IMEM:
            # Only the bundles that are written.
            first = descriptor.destination_address // BUNDLE_PITCH
            last = first + -(-descriptor.rows * self._config.lanes // BUNDLE_PITCH)
            memories[DmaSpace.IMEM] = dma.read_bundles(self.program[first:last])
            dma.copy(replace(descriptor, destination_address=0), self._config, memories)
            self.program[first:last] = dma.write_bundles(memories[DmaSpace.IMEM])
        else:
            dma.copy(descriptor, self._config, memories)
        if descriptor.signal:
            self.signal(descriptor.semaphore)
        if descriptor.signal_other:
            assert self._peer is not None
            self._peer.signal(descriptor.semaphore)

    def _memory(self, space: DmaSpace) -> _Words:
        if space is DmaSpace.HBM:
            return self.hbm
        if space is DmaSpace.OTHER_VMEM:
            assert self._peer is not None
            return self._peer.vmem
        if space is DmaSpace.MASK:
            bits = self.masks.astype(np.uint32) << np.arange(isa.MASKS,
                                                             dtype=np.uint32)[:, None, None]
            return np.bitwise_or.reduce(bits, axis=0)[None]
        return {DmaSpace.VMEM: self.vmem, DmaSpace.SMEM: self.smem,
                DmaSpace.VREG: self.vectors}[space]

    # What they do with the array.

    def _multiply(self) -> None:
        """Results of the oldest rows without any, and of all others that met the same weights.

        A row's result depends on the row and the weights alone; together they are faster.
        """
        first = next(result for result in self._results if result.value is None)
        batch = [result for result in self._results
                 if result.value is None and result.weights is first.weights]
        product = tile_matmul(np.concatenate([result.rows for result in batch]), first.weights)
        parts = product.view(np.uint32).reshape(len(batch), *first.rows.shape)
        for result, part in zip(batch, parts, strict=True):
            result.value = part

    def _oldest_result(self) -> _Words:
        if self._results[0].value is None:
            self._multiply()
        value = self._results[0].value
        assert value is not None
        return value

    def _push_weights(self, rows: NDArray[Any], transposed: bool) -> None:
        first = self.loaded * self._config.sublanes
        part = slice(first, first + self._config.sublanes)
        if transposed:
            self.next_weights[:, part] = rows.T
        else:
            self.next_weights[part] = rows
        self.transposed = transposed
        self.loaded += 1

    def _push_rows(self, rows: NDArray[Any], swap: bool) -> None:
        if swap:
            # Results that are still to be computed keep the weights of before.
            self.weights = self.next_weights
            self.next_weights = np.zeros_like(self.weights)
            self.loaded = 0
            self.active = True
        self._results.append(_Result(rows, self.weights))


def _scalar_in(machine: GoldenCore, number: int) -> _Number:
    if number == 0:
        return lambda: 0
    return lambda: machine.scalars.item(number)


def _scalar_out(machine: GoldenCore, number: int) -> Callable[[int], None]:
    def write(value: int) -> None:
        machine.scalars[number] = value

    return write if number else lambda value: None


def _splat(machine: GoldenCore, number: int) -> _Register:
    """A scalar register in an array that broadcasts."""
    if number == 0:
        zero = np.zeros(1, np.uint32)
        return lambda: zero
    return lambda: machine.scalars[number:number + 1]


def _vector_in(machine: GoldenCore, number: int) -> _Register:
    return lambda: machine.vectors[number]


def _vector_out(machine: GoldenCore, number: int) -> Callable[[_Words], None]:
    def write(value: _Words) -> None:
        machine.vectors[number] = value

    return write


def _mask_out(machine: GoldenCore, number: int) -> Callable[[_Bits], None]:
    def write(value: _Bits) -> None:
        machine.masks[number] = value

    return write


class _FormatError(Exception):
    """The bundle does not name what exists."""


class _Decoder:
    """Makes bundles into callables on a machine's state.

    Parameters
    ----------
    machine : GoldenCore
    """

    def __init__(self, machine: GoldenCore) -> None:
        self._machine = machine
        config = machine.config
        shape = (config.sublanes, config.lanes)
        self._lane = np.broadcast_to(np.arange(config.lanes, dtype=np.uint32), shape)
        self._sublane = np.broadcast_to(np.arange(config.sublanes, dtype=np.uint32)[:, None], shape)
        self._limits = {int(op): limit for op, limit in isa.index_limits(config).items()}
        # Accesses to each register; bundles share them.
        scalars, vectors = range(isa.SCALAR_REGISTERS), range(isa.VECTOR_REGISTERS)
        self._scalar_in = [_scalar_in(machine, number) for number in scalars]
        self._scalar_out = [_scalar_out(machine, number) for number in scalars]
        self._splat = [_splat(machine, number) for number in scalars]
        self._vector_in = [_vector_in(machine, number) for number in vectors]
        self._vector_out = [_vector_out(machine, number) for number in vectors]
        self._mask_out = [_mask_out(machine, number) for number in range(isa.MASKS)]
        # Of the bundle at hand.
        self._imm: tuple[int, ...] = ()
        self._checks: list[_Check] = []
        self._actions: list[_Action] = []
        self._wait: tuple[int, _Number] | None = None

    def decode(self, bundle: int) -> _Decoded:
        """The bundle's checks and actions."""
        slots, self._imm, reserved = unpack(bundle)
        self._checks, self._actions, self._wait = [], [], None
        try:
            if reserved:
                raise _FormatError
            operations = self._operations(slots)
        except _FormatError:
            return _always(Fault.ILLEGAL)
        if _conflict(operations):
            return _always(Fault.CONFLICT)
        for form, fields in operations:
            form.compile(self, form.operation, fields)
        checks = sorted(self._checks, key=lambda check: check[0])
        return _Decoded(tuple(checks), self._wait, tuple(self._actions))

    def _operations(self, slots: Mapping[Slot, Mapping[str, int]]
                    ) -> list[tuple["_Form", Mapping[str, int]]]:
        operations = []
        for slot, fields in slots.items():
            code = fields["op"]
            if code == 0:
                continue
            form = _FORMS[slot].get(code)
            if form is None or form.operation.cores > self._machine._cores:
                raise _FormatError
            for field, exists in form.limited:
                if not exists(fields[field]):
                    raise _FormatError
            operations.append((form, fields))
        return operations

    # Operands

    def _constant(self, code: int) -> int:
        """What a scalar source is that is no register."""
        if code < isa.FIRST_IMMEDIATE + isa.IMMEDIATES:
            return self._imm[code - isa.FIRST_IMMEDIATE]
        return (code - isa.INLINE_BASE) & _MASK32

    def _source(self, code: int) -> _Number:
        if code < isa.SCALAR_REGISTERS:
            return self._scalar_in[code]
        value = self._constant(code)
        return lambda: value

    def _address(self, fields: Mapping[str, int]) -> _Number:
        a, b = self._scalar_in[fields["a"]], self._source(fields["b"])
        return lambda: (a() + b()) & _MASK32

    def _vector_source(self, code: int) -> _Register:
        """The register, or the scalar in an array that broadcasts."""
        if code & isa.VECTOR_FLAG:
            return self._vector_in[code ^ isa.VECTOR_FLAG]
        if code < isa.SCALAR_REGISTERS:
            return self._splat[code]
        value = np.array([self._constant(code)], np.uint32)
        return lambda: value

    def _do(self, compute: Callable[[], Any], commit: Callable[[Any], None]) -> None:
        self._actions.append((compute, commit))

    # Operations

    def _scalar(self, operation: Operation, fields: Mapping[str, int]) -> None:
        function = _SCALAR[operation.op]
        a, b = self._scalar_in[fields["a"]], self._source(fields["b"])
        self._do(lambda: function(a(), b()), self._scalar_out[fields["d"]])

    def _scalar_memory(self, operation: Operation, fields: Mapping[str, int]) -> None:
        op, machine = operation.op, self._machine
        address = self._address(fields)
        self._checks.append((Fault.SMEM_RANGE, lambda: address() >= machine.smem.size))
        if op == ScalarOp.LOAD:
            self._do(lambda: machine.smem.item(address()), self._scalar_out[fields["d"]])
            return
        d = self._scalar_in[fields["d"]]

        def store(value: _SmemStore) -> None:
            machine.smem[value[0]] = value[1]

        self._do(lambda: (address(), d()), store)

    def _branch(self, operation: Operation, fields: Mapping[str, int]) -> None:
        op, machine = operation.op, self._machine

        def go(target: _Target) -> None:
            if target is not None:
                machine.pc = target

        if op == ScalarOp.HALT:
            def halt(pc: int) -> None:
                machine.pc = pc
                machine.running = False

            self._do(lambda: machine.pc, halt)
        elif op in _CONDITIONS:
            condition = _CONDITIONS[op]
            a, b, target = self._scalar_in[fields["a"]], self._source(fields["b"]), \
                self._imm[fields["d"]]
            self._do(lambda: target if condition(a(), b()) else None, go)
        elif op == ScalarOp.LOOP:
            d, b = self._scalar_in[fields["d"]], self._source(fields["b"])
            self._do(lambda: b() if d() != 1 else None, go)
            self._do(lambda: (d() - 1) & _MASK32, self._scalar_out[fields["d"]])
        else:
            self._do(self._source(fields["b"]), go)
            if op == ScalarOp.CALL:
                self._do(lambda: machine.pc + 1, self._scalar_out[fields["d"]])

    def _vector(self, operation: Operation, fields: Mapping[str, int]) -> None:
        op = operation.op
        assert isinstance(op, VectorOp)
        machine = self._machine
        if op in _MASK_OPERATIONS:
            function = _MASK_OPERATIONS[op]
            m, n = fields["a"], fields["b"]
            self._do(lambda: function(machine.masks[m], machine.masks[n]),
                     self._mask_out[fields["d"]])
            return
        a = self._vector_in[fields["a"]]
        # Where b is no operand, the field may hold anything.
        binary = any(operand.field == "b" for operand in operation.operands)
        b = self._vector_source(fields["b"]) if binary else None
        if operation.operands[0].kind is Kind.MASK_OUT:
            assert b is not None
            self._do(lambda: compare(op, a(), b()), self._mask_out[fields["d"]])
            return
        d = self._vector_out[fields["d"]]
        if op == VectorOp.LANE:
            self._do(lambda: self._lane, d)
        elif op == VectorOp.SUBLANE:
            self._do(lambda: self._sublane, d)
        elif b is None:
            self._do(lambda: evaluate(op, a()), d)
        elif op == VectorOp.SELECT:
            m = fields["m"]
            self._do(lambda: np.where(machine.masks[m], a(), b()), d)
        else:
            self._do(lambda: evaluate(op, a(), b()), d)

    def _vector_memory(self, operation: Operation, fields: Mapping[str, int]) -> None:
        machine = self._machine
        address = self._address(fields)
        d = fields["d"]
        self._checks.append((Fault.VMEM_RANGE, lambda: address() >= len(machine.vmem)))
        if isinstance(operation.op, LoadOp):
            # A copy, for a store of the same bundle may be written first.
            self._do(lambda: np.array(machine.vmem[address()]), self._vector_out[d])
            return
        m = fields["m"]

        def store(value: _VmemStore) -> None:
            np.copyto(machine.vmem[value[0]], value[1], where=value[2])

        self._do(lambda: (address(), machine.vectors[d].copy(), machine.masks[m].copy()), store)

    def _array(self, operation: Operation, fields: Mapping[str, int]) -> None:
        if isinstance(operation.op, PushOp):
            self._push(operation.op, fields)
        else:
            self._pop(fields)

    def _push(self, op: PushOp, fields: Mapping[str, int]) -> None:
        machine = self._machine
        config = machine.config
        a = self._vector_in[fields["a"]]

        def rows() -> _Rows:
            return to_bf16(a().view(np.float32))

        if op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T):
            transposed = op == PushOp.WEIGHTS_T
            self._checks.append((Fault.WEIGHT_LOAD, lambda: machine.loaded == config.tile_vregs or (
                machine.loaded > 0 and machine.transposed != transposed)))
            self._do(rows, lambda value: machine._push_weights(value, transposed))
            return
        swap = op == PushOp.ROWS_SWAP
        if swap:
            self._checks.append((Fault.WEIGHT_LOAD, lambda: machine.loaded != config.tile_vregs))
        else:
            self._checks.append((Fault.WEIGHT_LOAD, lambda: not machine.active))
        self._checks.append((Fault.FIFO_OVERFLOW, lambda: machine.held == config.result_vregs))
        self._do(rows, lambda value: machine._push_rows(value, swap))

    def _pop(self, fields: Mapping[str, int]) -> None:
        machine = self._machine
        d = fields["d"]
        self._checks.append((Fault.FIFO_UNDERFLOW, lambda: machine.held == 0))

        def pop(value: _Words) -> None:
            machine._results.popleft()
            machine.vectors[d] = value

        self._do(machine._oldest_result, pop)

    def _cross(self, operation: Operation, fields: Mapping[str, int]) -> None:
        op, machine = operation.op, self._machine
        a, d = self._vector_in[fields["a"]], self._vector_out[fields["d"]]
        if op == MiscOp.SUM_LANES:
            self._do(lambda: xlu.sum_lanes(a()), d)
            return
        if op == MiscOp.MAX_LANES:
            self._do(lambda: xlu.max_lanes(a()), d)
            return
        b, limit, sublanes = self._source(fields["b"]), self._limits[op], machine.config.sublanes
        self._checks.append((Fault.INDEX_RANGE, lambda: b() >= limit))
        if op == MiscOp.TRANSPOSE_IN:
            self._do(lambda: (a().copy(), b()),
                     lambda value: xlu.transpose_in(machine.transposer, *value))
        elif op == MiscOp.TRANSPOSE_OUT:
            self._do(lambda: xlu.transpose_out(machine.transposer, b(), sublanes), d)
        else:
            function = _MOVES[op]
            self._do(lambda: function(a(), b()), d)

    def _semaphore(self, operation: Operation, fields: Mapping[str, int]) -> None:
        op, machine = operation.op, self._machine
        if op == MiscOp.READ_SEMAPHORE:
            number = fields["a"]
            self._do(lambda: machine.semaphores.item(number), self._scalar_out[fields["d"]])
            return
        index, b = fields["d"], self._source(fields["b"])

        def write(value: int) -> None:
            machine.semaphores[index] = value

        if op == MiscOp.WAIT:
            self._wait = index, b
            self._do(lambda: machine.semaphores.item(index) - b(), write)
        else:
            self._checks.append((Fault.SEMAPHORE,
                                 lambda: machine.semaphores.item(index) + b() > _MASK32))
            self._do(lambda: machine.semaphores.item(index) + b(), write)

    def _other_core(self, operation: Operation, fields: Mapping[str, int]) -> None:
        peer = self._machine.peer
        assert peer is not None
        index = fields["d"]
        self._do(self._source(fields["b"]), lambda amount: peer.signal(index, amount))

    def _dma(self, operation: Operation, fields: Mapping[str, int]) -> None:
        machine, b = self._machine, self._source(fields["b"])
        self._checks.append((Fault.SMEM_RANGE,
                             lambda: b() + DESCRIPTOR_WORDS > machine.smem.size))
        for fault in operation.faults:
            if fault is not Fault.SMEM_RANGE:
                self._checks.append((fault, _is_fault_of(machine, b, fault)))
        # The last slot's: the transfer comes after all else that the bundle does.
        self._do(lambda: machine._descriptor(b())[0], machine._transfer)


def _is_fault_of(machine: GoldenCore, address: _Number, fault: Fault) -> Callable[[], bool]:
    return lambda: machine._descriptor(address())[1] is fault


def _always(fault: Fault) -> _Decoded:
    return _Decoded(((fault, lambda: True),), None, ())


def _source_exists(code: int) -> bool:
    constants = isa.INLINE_BASE + isa.INLINE_MIN
    return code < isa.FIRST_IMMEDIATE + isa.IMMEDIATES or code >= constants


def _vector_source_exists(code: int) -> bool:
    if code & isa.VECTOR_FLAG:
        return code ^ isa.VECTOR_FLAG < isa.VECTOR_REGISTERS
    return _source_exists(code)


_EXISTS: dict[Kind, Callable[[int], bool]] = {
    Kind.SOURCE: _source_exists,
    Kind.VECTOR_SOURCE: _vector_source_exists,
    Kind.MASK_OUT: lambda number: 0 < number < isa.MASKS,
    Kind.MASK_IN: lambda number: number < isa.MASKS,
    Kind.SEMAPHORE: lambda number: number < isa.SEMAPHORES,
    Kind.IMMEDIATE: lambda number: number < isa.IMMEDIATES,
}
"""Whether a field's value names something; of the other kinds, each one does."""

_FILES = {Kind.SCALAR_OUT: "s", Kind.SCALAR_INOUT: "s", Kind.VECTOR_OUT: "v", Kind.MASK_OUT: "m"}
"""Which registers an operand writes."""


@dataclass(frozen=True)
class _Form:
    """What the decoder has to know of an operation, looked up once.

    Attributes
    ----------
    operation : Operation
    limited : tuple of field and condition
        Fields not each of whose values names something.
    written : tuple of file and field
        Registers that it writes.
    compile : callable
        The decoder's method for it.
    """

    operation: Operation
    limited: tuple[tuple[str, Callable[[int], bool]], ...]
    written: tuple[tuple[str, str], ...]
    compile: Callable[[_Decoder, Operation, Mapping[str, int]], None]


def _form(operation: Operation) -> _Form:
    operands = operation.operands
    return _Form(
        operation,
        tuple((operand.field, _EXISTS[operand.kind]) for operand in operands
              if operand.kind in _EXISTS),
        tuple((_FILES[operand.kind], operand.field) for operand in operands
              if operand.kind in _FILES),
        _COMPILERS[operation.unit])


def _conflict(operations: Iterable[tuple[_Form, Mapping[str, int]]]) -> bool:
    """Whether two operations write the same register."""
    written = set()
    for form, fields in operations:
        for file, field in form.written:
            register = file, fields[field]
            if register in written:
                return True
            # What is written to s0 is lost.
            if register != ("s", 0):
                written.add(register)
    return False


def _signed(word: int) -> int:
    return word - (word >> 31 << 32)


_SCALAR: dict[int, Callable[[int, int], int]] = {
    ScalarOp.ADD: lambda a, b: (a + b) & _MASK32,
    ScalarOp.SUB: lambda a, b: (a - b) & _MASK32,
    ScalarOp.MUL: lambda a, b: (a * b) & _MASK32,
    ScalarOp.AND: lambda a, b: a & b,
    ScalarOp.OR: lambda a, b: a | b,
    ScalarOp.XOR: lambda a, b: a ^ b,
    ScalarOp.SHL: lambda a, b: (a << min(b, 32)) & _MASK32,
    ScalarOp.SHR: lambda a, b: a >> min(b, 32),
    ScalarOp.SAR: lambda a, b: (_signed(a) >> min(b, 32)) & _MASK32,
    ScalarOp.EQ: lambda a, b: int(a == b),
    ScalarOp.NE: lambda a, b: int(a != b),
    ScalarOp.LT: lambda a, b: int(_signed(a) < _signed(b)),
    ScalarOp.LTU: lambda a, b: int(a < b),
    ScalarOp.MIN: lambda a, b: min(a, b, key=_signed),
    ScalarOp.MAX: lambda a, b: max(a, b, key=_signed),
}

_CONDITIONS: dict[int, Callable[[int, int], bool]] = {
    ScalarOp.BEQ: lambda a, b: a == b,
    ScalarOp.BNE: lambda a, b: a != b,
    ScalarOp.BLT: lambda a, b: _signed(a) < _signed(b),
    ScalarOp.BGE: lambda a, b: _signed(a) >= _signed(b),
    ScalarOp.BLTU: lambda a, b: a < b,
    ScalarOp.BGEU: lambda a, b: a >= b,
}

_MASK_OPERATIONS: dict[int, Callable[[Any, Any], _Bits]] = {
    VectorOp.MAND: np.logical_and,
    VectorOp.MOR: np.logical_or,
    VectorOp.MXOR: np.logical_xor,
    VectorOp.MANDN: np.greater,
}

_MOVES: dict[int, Callable[[Any, int], _Words]] = {
    MiscOp.ROTATE_LANES: xlu.rotate_lanes,
    MiscOp.ROTATE_SUBLANES: xlu.rotate_sublanes,
    MiscOp.BROADCAST_LANE: xlu.broadcast_lane,
    MiscOp.BROADCAST_SUBLANE: xlu.broadcast_sublane,
}

_COMPILERS: dict[Unit, Callable[[_Decoder, Operation, Mapping[str, int]], None]] = {
    Unit.SCALAR: _Decoder._scalar,
    Unit.SMEM: _Decoder._scalar_memory,
    Unit.BRANCH: _Decoder._branch,
    Unit.SIMPLE: _Decoder._vector,
    Unit.FLOAT: _Decoder._vector,
    Unit.TRANSCENDENTAL: _Decoder._vector,
    Unit.VMEM: _Decoder._vector_memory,
    Unit.MXU: _Decoder._array,
    Unit.XLU: _Decoder._cross,
    Unit.SEMAPHORE: _Decoder._semaphore,
    Unit.OTHER_CORE: _Decoder._other_core,
    Unit.DMA: _Decoder._dma,
}

_FORMS: dict[Slot, dict[int, _Form]] = {
    slot: {operation.op.value: _form(operation) for operation in isa.OPERATIONS
           if slot in operation.slots}
    for slot in isa.SLOTS}
