"""Semantics of the operations: the execution of a bundle on the state of a core.

Specifies the parts of hdl/core that decode bundles, detect faults, and execute scalar operations,
branches and operations on semaphores. The other units have their own modules: `golden.vpu`
(hdl/vpu), `golden.mxu` (hdl/mxu), `golden.xlu` (hdl/xlu) and `golden.dma` (hdl/dma).

A `Decoder` translates a bundle once into a `Decoded`: callables that act on the state, and that a
core calls each time it executes the bundle. To translate an operation, the `Decoder` calls the
function of the operation's unit, which adds to the `Decoded`

- checks: a fault, and a callable that returns whether the bundle has this fault in the present
  state;
- actions: a callable that computes a value from the state that earlier bundles left, and a callable
  that commits this value. All values of a bundle are computed before any is committed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from golden import vpu, xlu
from golden.dma import check_remote
from golden.state import WORD_MASK, ArchitecturalState
from hdl import isa
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import unpack
from hdl.isa import Fault, Kind, LoadOp, MiscOp, Operation, PushOp, ScalarOp, Slot, Unit, VectorOp

__all__ = ["Decoded", "Decoder"]

_CACHED_BUNDLES = 1 << 14
"""Number of bundles whose operations are kept for all cores."""

# Arrays of uint32. Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]
# Named, because the annotations of a nested function are evaluated at each call of the outer one.
_Bits = NDArray[np.bool_]
_SmemStore = tuple[int, int]
_VmemStore = tuple[int, _Words, _Bits]
_WholeStore = tuple[int, _Words]
_Target = int | None
_Number = Callable[[], int]
_Check = tuple[Fault, Callable[[], bool]]
_Fields = Mapping[str, int]
_Parsed = tuple[Fault, tuple[tuple["_Form", _Fields], ...], tuple[int, ...]]


class Decoded(NamedTuple):
    """A bundle, ready to be executed.

    Attributes
    ----------
    checks : tuple of (Fault, callable)
        In order of priority: a fault, and a callable that returns whether the bundle has it in the
        present state.
    wait : (int, callable), or None
        Number of the semaphore that the bundle waits for, and a callable. The callable returns the
        least value of the semaphore at which the bundle can be executed.
    computes, commits : tuples of callables
        The actions: call all of ``computes``, then each of ``commits`` with the value that its
        counterpart returned.
    """

    checks: tuple[_Check, ...]
    wait: tuple[int, _Number] | None
    computes: tuple[Callable[[], Any], ...]
    commits: tuple[Callable[[Any], None], ...]


def _scalar_in(state: ArchitecturalState, number: int) -> _Number:
    if number == 0:
        return lambda: 0
    return partial(state.scalars.item, number)


def _scalar_out(state: ArchitecturalState, number: int) -> Callable[[int], None]:
    scalars = state.scalars

    def write(value: int) -> None:
        scalars[number] = value

    return write if number else lambda value: None


def _writers(registers: _Words) -> list[Callable[[_Words], None]]:
    """Return a function for each register that assigns an array to it."""
    return [partial(register.__setitem__, ...) for register in registers]


class Decoder:
    """Translates the bundles of one core into callables on its state.

    Parameters
    ----------
    state : ArchitecturalState
        The state on which the callables act.
    """

    def __init__(self, state: ArchitecturalState) -> None:
        self.state = state
        config = state.config
        shape = (config.sublanes, config.lanes)
        self.lane = np.broadcast_to(np.arange(config.lanes, dtype=np.uint32), shape)
        self.sublane = np.broadcast_to(np.arange(config.sublanes, dtype=np.uint32)[:, None], shape)
        self.limits = {int(op): limit for op, limit in isa.index_limits(config).items()}
        # Functions that access each register, and views of registers; all bundles use them.
        scalars = range(isa.SCALAR_REGISTERS)
        self.scalar_in = [_scalar_in(state, number) for number in scalars]
        self.scalar_out = [_scalar_out(state, number) for number in scalars]
        # Of one element each, which broadcasts to all elements of a vector. s0 is always zero.
        self.splats = [state.scalars[number:number + 1] for number in scalars]
        self.vectors = list(state.vectors)
        self.vector_out = _writers(state.vectors)
        self.masks = list(state.masks)
        self.mask_out = _writers(state.masks)
        # Results of the bundle that is being decoded.
        self.imm: tuple[int, ...] = ()
        self._checks: list[_Check] = []
        self._computes: list[Callable[[], Any]] = []
        self._commits: list[Callable[[Any], None]] = []
        self._wait: tuple[int, _Number] | None = None

    def decode(self, bundle: int) -> Decoded:
        """Translate ``bundle``, an integer in the format of `hdl.encoding.pack`."""
        state = self.state
        fault, operations, self.imm = _operations(bundle, state.cores,
                                                  bool(state.config.link_bytes))
        if fault is not Fault.NONE:
            return _always(fault)
        self._checks, self._computes, self._commits, self._wait = [], [], [], None
        for form, fields in operations:
            form.execute(self, form.operation, fields)
        checks = sorted(self._checks, key=_priority)
        return Decoded(tuple(checks), self._wait, tuple(self._computes), tuple(self._commits))

    # Operands

    def constant(self, code: int) -> int:
        """Return the constant that the field value ``code`` selects.

        It is one of the bundle's immediates, or an integer that ``code`` itself encodes.
        """
        if code < isa.FIRST_IMMEDIATE + isa.IMMEDIATES:
            return self.imm[code - isa.FIRST_IMMEDIATE]
        return (code - isa.INLINE_BASE) & WORD_MASK

    def source(self, code: int) -> _Number:
        """Return a function that reads the scalar source that ``code`` names."""
        if code < isa.SCALAR_REGISTERS:
            return self.scalar_in[code]
        value = self.constant(code)
        return lambda: value

    def applied(self, function: Callable[[int, int], Any], fields: _Fields) -> Callable[[], Any]:
        """Return a function that applies ``function`` to operands a and b, which are scalars."""
        a, code = self.scalar_in[fields["a"]], fields["b"]
        if code < isa.SCALAR_REGISTERS:
            b = self.scalar_in[code]
            return lambda: function(a(), b())
        value = self.constant(code)
        return lambda: function(a(), value)

    def address(self, fields: _Fields, fault: Fault, size: int) -> _Number:
        """Return a function that computes an address: the sum of operands a and b, modulo 2**32.

        Add a check for ``fault``: the address must be less than ``size``. ``fields`` are those of
        the slot of the load or store.
        """
        a, b = self.scalar_in[fields["a"]], self.source(fields["b"])
        constant = fields["b"] >= isa.SCALAR_REGISTERS
        offset = b() if constant else 0
        if not fields["a"]:
            if not constant or offset >= size:
                self.check(fault, lambda: b() >= size)
            return b

        def address() -> int:
            return (a() + offset if constant else a() + b()) & WORD_MASK

        self.check(fault, lambda: address() >= size)
        return address

    def vector_source(self, code: int) -> _Words:
        """Return the vector source that ``code`` names: a view of registers, or a constant.

        If the source is a scalar, it is an array of one element, which broadcasts.
        """
        if code & isa.VECTOR_FLAG:
            return self.vectors[code ^ isa.VECTOR_FLAG]
        if code < isa.SCALAR_REGISTERS:
            return self.splats[code]
        return np.array([self.constant(code)], np.uint32)

    # Parts of the bundle's translation

    def check(self, fault: Fault, failed: Callable[[], bool]) -> None:
        """Add a check: the bundle has ``fault`` if ``failed`` returns true."""
        self._checks.append((fault, failed))

    def wait(self, semaphore: int, least: _Number) -> None:
        """Make the bundle wait until a semaphore has at least the value that ``least`` returns."""
        self._wait = semaphore, least

    def do(self, compute: Callable[[], Any], commit: Callable[[Any], None]) -> None:
        """Add an action: ``commit`` will be called with the value that ``compute`` returns."""
        self._computes.append(compute)
        self._commits.append(commit)


def _scalar(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    decoder.do(decoder.applied(_SCALAR[operation.op], fields), decoder.scalar_out[fields["d"]])


def _scalar_memory(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    smem = decoder.state.smem
    address = decoder.address(fields, Fault.SMEM_RANGE, smem.size)
    if operation.op == ScalarOp.LOAD:
        item = smem.item
        decoder.do(lambda: item(address()), decoder.scalar_out[fields["d"]])
        return
    d = decoder.scalar_in[fields["d"]]

    def store(value: _SmemStore) -> None:
        smem[value[0]] = value[1]

    decoder.do(lambda: (address(), d()), store)


def _branch(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    op, state = operation.op, decoder.state

    def go(target: _Target) -> None:
        if target is not None:
            state.pc = target

    if op == ScalarOp.HALT:
        def halt(pc: int) -> None:
            state.pc = pc
            state.running = False

        decoder.do(lambda: state.pc, halt)
    elif op in _CONDITIONS:
        holds = decoder.applied(_CONDITIONS[op], fields)
        target = decoder.imm[fields["d"]]
        decoder.do(lambda: target if holds() else None, go)
    elif op == ScalarOp.LOOP:
        d, b = decoder.scalar_in[fields["d"]], decoder.source(fields["b"])
        decoder.do(lambda: b() if d() != 1 else None, go)
        decoder.do(lambda: (d() - 1) & WORD_MASK, decoder.scalar_out[fields["d"]])
    else:
        decoder.do(decoder.source(fields["b"]), go)
        if op == ScalarOp.CALL:
            decoder.do(lambda: state.pc + 1, decoder.scalar_out[fields["d"]])


def _vector(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    op = operation.op
    assert isinstance(op, VectorOp)
    if op in _MASK_OPERATIONS:
        m, n = decoder.masks[fields["a"]], decoder.masks[fields["b"]]
        decoder.do(partial(_MASK_OPERATIONS[op], m, n), decoder.mask_out[fields["d"]])
        return
    a = decoder.vectors[fields["a"]]
    # If b is not an operand, its field is ignored and may hold any value.
    has_b = any(operand.field == "b" for operand in operation.operands)
    b = decoder.vector_source(fields["b"]) if has_b else None
    if operation.operands[0].kind is Kind.MASK_OUT:
        assert b is not None
        decoder.do(partial(vpu.comparison(op), a, b), decoder.mask_out[fields["d"]])
        return
    d = decoder.vector_out[fields["d"]]
    if op == VectorOp.LANE:
        decoder.do(lambda: decoder.lane, d)
    elif op == VectorOp.SUBLANE:
        decoder.do(lambda: decoder.sublane, d)
    elif b is None:
        decoder.do(partial(vpu.unary(op), a), d)
    elif op == VectorOp.SELECT:
        decoder.do(partial(np.where, decoder.masks[fields["m"]], a, b), d)
    elif op in vpu.SHIFTS and isa.FIRST_IMMEDIATE <= fields["b"] < isa.VECTOR_FLAG:
        decoder.do(partial(vpu.shift(op, decoder.constant(fields["b"])), a), d)
    else:
        decoder.do(partial(vpu.binary(op), a, b), d)


def _vector_memory(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    vmem = decoder.state.vmem
    address = decoder.address(fields, Fault.VMEM_RANGE, len(vmem))
    d = fields["d"]

    def load() -> _Words:
        # A copy, because a store in the same bundle may be committed first.
        return vmem[address()].copy()

    if isinstance(operation.op, LoadOp):
        decoder.do(load, decoder.vector_out[d])
        return
    # Copies, because operations of the same bundle may be committed first.
    copy, mask = decoder.vectors[d].copy, decoder.masks[fields["m"]]

    def store(value: _VmemStore) -> None:
        np.copyto(vmem[value[0]], value[1], where=value[2])

    def store_all(value: _WholeStore) -> None:
        vmem[value[0]] = value[1]

    if fields["m"] == 0:
        decoder.do(lambda: (address(), copy()), store_all)
    else:
        decoder.do(lambda: (address(), copy(), mask.copy()), store)


def _array(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    if isinstance(operation.op, PushOp):
        _push(decoder, operation.op, fields)
    else:
        _pop(decoder, fields)


def _push(decoder: Decoder, op: PushOp, fields: _Fields) -> None:
    state = decoder.state
    config = state.config
    # The array rounds the rows when it multiplies, and the register may change before that.
    rows = decoder.vectors[fields["a"]].view(np.float32).copy
    if op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T):
        transposed = op == PushOp.WEIGHTS_T
        decoder.check(Fault.WEIGHT_LOAD, lambda: state.loaded == config.tile_vregs or (
            state.loaded > 0 and state.transposed != transposed))
        decoder.do(rows, lambda value: state.push_weights(value, transposed))
        return
    swap = op == PushOp.ROWS_SWAP
    if swap:
        decoder.check(Fault.WEIGHT_LOAD, lambda: state.loaded != config.tile_vregs)
    else:
        decoder.check(Fault.WEIGHT_LOAD, lambda: not state.active)
    decoder.check(Fault.FIFO_OVERFLOW, lambda: state.held == config.result_vregs)
    decoder.do(rows, lambda value: state.push_rows(value, swap))


def _pop(decoder: Decoder, fields: _Fields) -> None:
    state, write = decoder.state, decoder.vector_out[fields["d"]]
    decoder.check(Fault.FIFO_UNDERFLOW, lambda: state.held == 0)

    def pop(value: _Words) -> None:
        state.drop_result()
        write(value)

    decoder.do(state.oldest_result, pop)


def _cross(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    op, state = operation.op, decoder.state
    a, d = decoder.vectors[fields["a"]], decoder.vector_out[fields["d"]]
    if op == MiscOp.SUM_LANES:
        decoder.do(partial(xlu.sum_lanes, a), d)
        return
    if op == MiscOp.MAX_LANES:
        decoder.do(partial(xlu.max_lanes, a), d)
        return
    b, limit, sublanes = decoder.source(fields["b"]), decoder.limits[op], state.config.sublanes
    decoder.check(Fault.INDEX_RANGE, lambda: b() >= limit)
    if op == MiscOp.TRANSPOSE_IN:
        decoder.do(lambda: (a.copy(), b()),
                   lambda value: xlu.transpose_in(state.transposer, *value))
    elif op == MiscOp.TRANSPOSE_OUT:
        decoder.do(lambda: xlu.transpose_out(state.transposer, b(), sublanes), d)
    else:
        function = _MOVES[op]
        decoder.do(lambda: function(a, b()), d)


def _semaphore(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    op, state = operation.op, decoder.state
    if op == MiscOp.READ_SEMAPHORE:
        number = fields["a"]
        decoder.do(lambda: state.semaphores.item(number), decoder.scalar_out[fields["d"]])
        return
    index, b = fields["d"], decoder.source(fields["b"])

    def write(value: int) -> None:
        state.semaphores[index] = value

    if op == MiscOp.WAIT:
        decoder.wait(index, b)
        decoder.do(lambda: state.semaphores.item(index) - b(), write)
    else:
        decoder.check(Fault.SEMAPHORE, lambda: state.semaphores.item(index) + b() > WORD_MASK)
        decoder.do(lambda: state.semaphores.item(index) + b(), write)


def _other_core(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    peer = decoder.state.peer
    assert peer is not None
    index = fields["d"]
    decoder.do(decoder.source(fields["b"]), lambda amount: peer.signal(index, amount))


def _links(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    state, index = decoder.state, fields["d"]
    a, b = decoder.scalar_in[fields["a"]], decoder.source(fields["b"])
    for fault in operation.faults:
        decoder.check(fault, _is_fault_of_chip(state, a, fault))
    decoder.do(lambda: (a(), b()), lambda value: state.egress.put(value[0], (), index, value[1]))


def _is_fault_of_chip(state: ArchitecturalState, chip: _Number,
                      fault: Fault) -> Callable[[], bool]:
    return lambda: check_remote(chip(), state.config, state.torus) is fault


def _dma(decoder: Decoder, operation: Operation, fields: _Fields) -> None:
    state, b = decoder.state, decoder.source(fields["b"])
    decoder.check(Fault.SMEM_RANGE, lambda: b() + DESCRIPTOR_WORDS > state.smem.size)
    for fault in operation.faults:
        if fault is not Fault.SMEM_RANGE:
            decoder.check(fault, _is_fault_of(state, b, fault))
    # `dma` is in the last slot, so the transfer follows all other actions of the bundle.
    decoder.do(lambda: state.read_descriptor(b())[0], state.execute_transfer)


def _is_fault_of(state: ArchitecturalState, address: _Number, fault: Fault) -> Callable[[], bool]:
    return lambda: state.read_descriptor(address())[1] is fault


def _always(fault: Fault) -> Decoded:
    return Decoded(((fault, lambda: True),), None, (), ())


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
"""For each kind of operand that can be invalid: a function that tells if a value is valid."""

_FILES = {Kind.SCALAR_OUT: "s", Kind.SCALAR_INOUT: "s", Kind.VECTOR_OUT: "v", Kind.MASK_OUT: "m"}
"""For each kind of operand that an operation writes: the letter that names its register file."""


@dataclass(frozen=True)
class _Form:
    """What the decoder needs to know about an operation.

    Attributes
    ----------
    operation : Operation
    limited : tuple of (str, callable)
        Each field that can hold an invalid value, and a function that returns whether a value is
        valid.
    written : tuple of (str, str)
        For each register that the operation writes: the letter that names its register file, and
        the field that holds its number.
    execute : callable
        Called when a bundle is decoded. It gives the decoder the checks and actions that execute
        the operation. All operations of a unit have the same function.
    """

    operation: Operation
    limited: tuple[tuple[str, Callable[[int], bool]], ...]
    written: tuple[tuple[str, str], ...]
    execute: Callable[[Decoder, Operation, _Fields], None]


def _form(operation: Operation) -> _Form:
    operands = operation.operands
    return _Form(
        operation,
        tuple((operand.field, _EXISTS[operand.kind]) for operand in operands
              if operand.kind in _EXISTS),
        tuple((_FILES[operand.kind], operand.field) for operand in operands
              if operand.kind in _FILES),
        _UNITS[operation.unit])


@lru_cache(_CACHED_BUNDLES)
def _operations(bundle: int, cores: int, links: bool) -> _Parsed:
    """Return the fault of a bundle's encoding, its operations with their fields, its immediates.

    The cores of a pod run the same bundles, so they share the results.

    Parameters
    ----------
    bundle : int
        An integer in the format of `hdl.encoding.pack`.
    cores : int
        Number of cores of the chip.
    links : bool
        Whether the chip has links.
    """
    slots, imm, reserved = unpack(bundle)
    illegal = Fault.ILLEGAL, (), imm
    if reserved:
        return illegal
    operations = []
    for slot, fields in slots.items():
        code = fields["op"]
        if code == 0:
            continue
        form = _FORMS[slot].get(code)
        if form is None or form.operation.cores > cores or (form.operation.links and not links):
            return illegal
        for field, exists in form.limited:
            if not exists(fields[field]):
                return illegal
        operations.append((form, fields))
    fault = Fault.CONFLICT if _conflict(operations) else Fault.NONE
    return fault, tuple(operations), imm


def _priority(check: _Check) -> int:
    return check[0]


def _conflict(operations: Iterable[tuple[_Form, _Fields]]) -> bool:
    """Return whether two of the operations write the same register."""
    written = set()
    for form, fields in operations:
        for file, field in form.written:
            register = file, fields[field]
            if register in written:
                return True
            # Writes to s0 have no effect.
            if register != ("s", 0):
                written.add(register)
    return False


def _signed(word: int) -> int:
    return word - (word >> 31 << 32)


_SCALAR: dict[int, Callable[[int, int], int]] = {
    ScalarOp.ADD: lambda a, b: (a + b) & WORD_MASK,
    ScalarOp.SUB: lambda a, b: (a - b) & WORD_MASK,
    ScalarOp.MUL: lambda a, b: (a * b) & WORD_MASK,
    ScalarOp.AND: lambda a, b: a & b,
    ScalarOp.OR: lambda a, b: a | b,
    ScalarOp.XOR: lambda a, b: a ^ b,
    ScalarOp.SHL: lambda a, b: (a << min(b, 32)) & WORD_MASK,
    ScalarOp.SHR: lambda a, b: a >> min(b, 32),
    ScalarOp.SAR: lambda a, b: (_signed(a) >> min(b, 32)) & WORD_MASK,
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

_UNITS: dict[Unit, Callable[[Decoder, Operation, _Fields], None]] = {
    Unit.SCALAR: _scalar,
    Unit.SMEM: _scalar_memory,
    Unit.BRANCH: _branch,
    Unit.SIMPLE: _vector,
    Unit.FLOAT: _vector,
    Unit.TRANSCENDENTAL: _vector,
    Unit.VMEM: _vector_memory,
    Unit.MXU: _array,
    Unit.XLU: _cross,
    Unit.SEMAPHORE: _semaphore,
    Unit.OTHER_CORE: _other_core,
    Unit.LINKS: _links,
    Unit.DMA: _dma,
}

_FORMS: dict[Slot, dict[int, _Form]] = {
    slot: {operation.op.value: _form(operation) for operation in isa.OPERATIONS
           if slot in operation.slots}
    for slot in isa.SLOTS}
