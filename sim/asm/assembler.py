"""The assembler: builds programs by method calls, one bundle after the other.

    asm = Assembler()
    with asm.bundle() as b:
        b.s0.add(s[1], s[0], 10)
    asm.label("loop")
    with asm.bundle() as b:
        b.v0.fadd(v[1], v[1], 1.5)
        b.s1.loop(s[1], "loop")
    with asm.bundle() as b:
        b.s1.halt()
    program = asm.assemble()

Every operation of `hdl.isa` is a method of its slots (`sim.asm.slots`). `sim.asm.operands` has the
registers ``s``, ``v``, ``m``, ``sem``. `sim.asm.text` reads programs from text.
`sim.asm.descriptor` makes the descriptors that `dma` needs in scalar memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType, TracebackType
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from hdl import isa
from hdl.checks import integer
from hdl.config import Config
from hdl.encoding import bundle_words, pack
from hdl.isa import Kind, Operand, Operation, Slot
from sim.asm.disassembler import BANKS, disassemble, label_names, written_registers
from sim.asm.naming import default, parameter
from sim.asm.operands import (
    REGISTERS,
    Immediate,
    Register,
    Scalar,
    SlotMethods,
    Source,
    Vector,
    imm,
    m,
    word,
)
from sim.asm.slots import (
    LoadMethods,
    MiscMethods,
    PopMethods,
    PushMethods,
    Scalar0Methods,
    Scalar1Methods,
    StoreMethods,
    Vector0Methods,
    Vector1Methods,
)

__all__ = ["Assembler", "Bundle", "Program"]

_BY_NAME: dict[tuple[Slot, str], Operation] = {
    (slot, operation.name): operation for operation in isa.OPERATIONS for slot in operation.slots}
_M = TypeVar("_M", bound=SlotMethods)
_Code = tuple[int, int | str | Immediate | None]
"""An operand's code in its field, and the immediate that the operand needs.

The second item is None for an operand that needs no immediate. It is an `Immediate` if the program
names the immediate, whose number is then part of the code. Otherwise, it is the word or label that
an immediate must hold; the assembler chooses this immediate later, and adds its number to the code.
"""


@dataclass(frozen=True)
class Program(Sequence[int]):
    """A sequence of bundles, to be loaded at address 0.

    Attributes
    ----------
    bundles : tuple of int
        The encoded bundles, of `hdl.isa.BUNDLE_BITS` bits each.
    labels : mapping of str to int
        Address of each label, in program order.
    """

    bundles: tuple[int, ...]
    labels: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.bundles)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return self.bundles[index]

    def words(self) -> NDArray[np.uint32]:
        """Return the bundles as words of instruction memory, shape (bundles, `BUNDLE_WORDS`)."""
        rows = [bundle_words(bundle) for bundle in self.bundles]
        return np.array(rows, np.uint32).reshape(len(rows), isa.BUNDLE_WORDS)

    def rows(self, config: Config) -> NDArray[np.uint32]:
        """Return the bundles as rows of HBM, from which a transfer loads the program as an overlay.

        After the program's last bundle, the last row is filled with empty bundles, which the
        transfer also writes to instruction memory. The row may hold only the first words of the
        last empty bundle.

        Returns
        -------
        array of uint32, shape (rows, config.lanes)
        """
        words = np.zeros((len(self.bundles), isa.BUNDLE_PITCH), np.uint32)
        words[:, :isa.BUNDLE_WORDS] = self.words()
        rows = np.zeros((-(-words.size // config.lanes), config.lanes), np.uint32)
        rows.reshape(-1)[:words.size] = words.reshape(-1)
        return rows

    def listing(self) -> str:
        """Return the program as text, with addresses as comments; it assembles to this program."""
        names = label_names(self.labels)
        lines = []
        for address in range(len(self.bundles) + 1):
            lines += [f"{name}:" for name, place in self.labels.items() if place == address]
            if address < len(self.bundles):
                lines.append(f"    {disassemble(self.bundles[address], names)}  # {address}")
        return "".join(line + "\n" for line in lines)


class Assembler:
    """Builds a program.

    Parameters
    ----------
    config : Config or None
        The chip whose instruction memory the program must fit, and whose operations it may use;
        None for no limit.

    Raises
    ------
    TypeError
        If ``config`` is neither a `Config` nor None.
    """

    def __init__(self, config: Config | None = None) -> None:
        if config is not None and not isinstance(config, Config):
            raise TypeError(f"config must be a Config or None, not {config!r}")
        self._config = config
        self._bundles: list[Bundle] = []
        self._labels: dict[str, int] = {}
        self._open: Bundle | None = None

    @property
    def config(self) -> Config | None:
        """The chip for which the program is built; None for any chip."""
        return self._config

    @property
    def here(self) -> int:
        """Address of the next bundle."""
        return len(self._bundles)

    @property
    def labels(self) -> Mapping[str, int]:
        """Address of each label that is defined so far."""
        return MappingProxyType(self._labels)

    def label(self, name: str) -> None:
        """Names the address of the next bundle.

        Raises
        ------
        TypeError, ValueError
            If the name is not an identifier, looks like a register, or is already defined; if a
            bundle is open.
        """
        _check_label(name)
        if name in self._labels:
            raise ValueError(f"label {name!r} is already at bundle {self._labels[name]}")
        if self._open is not None:
            raise ValueError(f"label {name!r} must be between bundles, not in bundle "
                             f"{self.here}")
        self._labels[name] = self.here

    def bundle(self) -> "Bundle":
        """Return the next bundle, for a ``with`` statement, whose end adds it to the program."""
        return Bundle(self)

    def assemble(self) -> Program:
        """Return the program that consists of all bundles so far.

        Raises
        ------
        ValueError
            If a label that is used is not defined, or a bundle is open.
        """
        if self._open is not None:
            raise ValueError(f"bundle {self.here} must be closed before the program is assembled")
        return Program(tuple(bundle._pack(self._labels) for bundle in self._bundles),
                       MappingProxyType(dict(self._labels)))

    def _enter(self, bundle: "Bundle") -> None:
        if self._open is not None:
            raise ValueError(f"bundle {self.here} must be closed before the next is opened")
        limit = None if self._config is None else self._config.imem_bundles
        if limit is not None and self.here >= limit:
            raise ValueError(f"program must have at most {limit} bundles, the size of the "
                             f"instruction memory; bundle {self.here} does not fit")
        self._open = bundle

    def _leave(self, bundle: "Bundle", keep: bool) -> None:
        self._open = None
        if keep:
            self._bundles.append(bundle)


class _Methods(Generic[_M]):
    """Attribute of `Bundle` for a slot: an object of class ``kind``, whose methods are operations.

    The object is made when the attribute is first used, because most bundles use few slots.
    """

    def __init__(self, kind: type[_M], slot: Slot) -> None:
        self._kind = kind
        self._slot = slot

    def __get__(self, bundle: "Bundle", owner: type["Bundle"]) -> _M:
        methods = self._kind(bundle._putter(self._slot))
        # Found there before this attribute of the class.
        vars(bundle)[self._slot.value] = methods
        return methods


class Bundle:
    """A bundle under construction: an attribute for each slot, with the operations as methods.

    The order of calls does not matter. A value that does not fit its operand field, and every
    label, gets an immediate; equal values share one. Immediates are assigned in the order of the
    slots and their operands. In private methods, ``where`` names the bundle, and the operation or
    operand if there is one, for error messages.
    """

    s0 = _Methods(Scalar0Methods, Slot.S0)
    s1 = _Methods(Scalar1Methods, Slot.S1)
    v0 = _Methods(Vector0Methods, Slot.V0)
    v1 = _Methods(Vector1Methods, Slot.V1)
    ld = _Methods(LoadMethods, Slot.LOAD)
    st = _Methods(StoreMethods, Slot.STORE)
    push = _Methods(PushMethods, Slot.PUSH)
    pop = _Methods(PopMethods, Slot.POP)
    misc = _Methods(MiscMethods, Slot.MISC)

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._number = assembler.here
        self._state = "not entered"
        self._slots: dict[Slot, dict[str, int]] = {}
        self._written: dict[str, str] = {}
        self._keys: list[int | str | None] = [None] * isa.IMMEDIATES
        self._named = [False] * isa.IMMEDIATES
        self._wanted: dict[tuple[Slot, int], tuple[str, int | str]] = {}
        self._reserved = 0
        self._failing: int | str | None = None

    def __enter__(self) -> "Bundle":
        if self._state != "not entered":
            raise ValueError(f"bundle {self._number} must be entered only once")
        self._assembler._enter(self)
        self._number = self._assembler.here
        self._state = "open"
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._state = "closed"
        if kind is None:
            self._place_immediates()
        self._assembler._leave(self, keep=kind is None)

    @property
    def failing(self) -> int | str | None:
        """Cause of the last error of `operation` or `raw`: an operand's position or a field's name.

        Positions count from 0, in the order of the text form. None if the error concerns neither an
        operand nor a field.
        """
        return self._failing

    def operation(self, slot: Slot | str, name: str, /, *operands: Any, **ignored: int) -> None:
        """Adds an operation by its names in the text form, like ``b.v0.fadd(...)``.

        Parameters
        ----------
        slot, name : str
            Names of the slot and of the operation; ``nop`` leaves the slot without an operation.
        operands
            As in the text form. Those with a default are optional; they come last.
        ignored
            Values of fields that the operation does not use; by default 0.

        Raises
        ------
        TypeError, ValueError
            If the slot is already used; if the slot or the chip has no such operation; if an
            operand has the wrong kind or is out of range; if another slot of the bundle writes the
            same register; if no immediate is left.
        """
        self._failing = None
        slot = self._checked_slot(slot)
        where = f"bundle {self._number}, {slot}.{name}"
        operation = self._lookup(where, slot, name)
        expected = operation.operands if operation is not None else ()
        needed = sum(operation is None or default(operation, operand) is None
                     for operand in expected)
        if not needed <= len(operands) <= len(expected):
            span = f"{needed}" if needed == len(expected) else f"{needed} to {len(expected)}"
            raise TypeError(f"{where}: number of operands must be {span}, not {len(operands)}")
        fields = {"op": 0 if operation is None else operation.op.value}
        for field, value in ignored.items():
            self._failing = field
            self._check_field(where, slot, field, value)
            if field == "op" or field in (operand.field for operand in expected):
                raise ValueError(f"{where}: {field} must be a field that the operation ignores")
            fields[field] = value
        if operation is not None:
            self._encode(where, slot, operation, operands, fields)
        self._slots[slot] = fields

    def _lookup(self, where: str, slot: Slot, name: str) -> Operation | None:
        """Return the slot's operation ``name``, which the chip must have; None for ``nop``."""
        if name == "nop":
            return None
        operation = _BY_NAME.get((slot, name))
        if operation is None:
            names = ", ".join(known for place, known in _BY_NAME if place is slot)
            raise ValueError(f"bundle {self._number}: operation of slot {slot} must be one of "
                             f"{names}, not {name!r}")
        config = self._assembler.config
        if config is not None and operation.cores > config.cores:
            raise ValueError(f"{where}: the chip must have {operation.cores} cores, "
                             f"not {config.cores!r}")
        if config is not None and operation.links and not config.link_bytes:
            raise ValueError(f"{where}: the chip must have links, not link_bytes=0")
        return operation

    def _encode(self, where: str, slot: Slot, operation: Operation, operands: Sequence[Any],
                fields: dict[str, int]) -> None:
        """Adds the operands' codes to ``fields``, and adds their immediates to the bundle.

        An error leaves the bundle unchanged, so a caller can catch it and continue.
        """
        given = list(operands) + [
            default(operation, operand) if operand.kind is Kind.SOURCE else m[0]
            for operand in operation.operands[len(operands):]]
        named, wanted = list(self._named), dict(self._wanted)
        for position, (operand, value) in enumerate(zip(operation.operands, given, strict=True)):
            self._failing = position
            role = parameter(operation, operand)
            what = f"{where}: {role}"
            if role == "target" and isinstance(value, (float, np.floating)):
                raise TypeError(f"{what} must be an address or a label, not {value!r}")
            fields[operand.field], need = self._code(what, operand, value)
            if isinstance(need, Immediate):
                named[need.number] = True
            elif need is not None:
                wanted[slot, position] = operand.field, need
            if need is not None:
                self._check_room(what, self._keys, named, wanted)
        self._failing = None
        self._check_written(where, operation, fields)
        self._named, self._wanted = named, wanted
        for register in written_registers(operation, fields):
            self._written[register] = f"{slot}.{operation.name}"

    def raw(self, slot: Slot | str, /, **fields: int) -> None:
        """Sets a slot by its fields, without checking that they encode a valid operation.

        Raises
        ------
        TypeError, ValueError
            If the slot is already used or has no such field, or a value does not fit.
        """
        self._failing = None
        slot = self._checked_slot(slot)
        for field, value in fields.items():
            self._failing = field
            self._check_field(f"bundle {self._number}, slot {slot}", slot, field, value)
        self._slots[slot] = dict(fields)

    def immediate(self, number: int, value: Source) -> None:
        """Sets immediate number ``number``, which operands can refer to by ``imm[number]``.

        Raises
        ------
        TypeError, ValueError
            If there is no such immediate, or it is already set; if the value is neither a number
            nor a label; if operands need more immediates than are left.
        """
        self._check_open()
        register = imm[number]
        if self._keys[number] is not None:
            raise ValueError(f"bundle {self._number}: immediate {register} must be set only once, "
                             f"but is set to {_shown(self._keys[number])} and to {value!r}")
        where = f"bundle {self._number}: {register}"
        named, keys = list(self._named), list(self._keys)
        named[number], keys[number] = True, self._key(where, value)
        self._check_room(where, keys, named, self._wanted)
        self._named, self._keys = named, keys

    def reserved(self, value: int) -> None:
        """Sets the bits that no slot uses; any value but 0 makes the bundle illegal.

        Raises
        ------
        TypeError, ValueError
            If the value is not an integer, or does not fit.
        """
        self._check_open()
        _check_bits(f"bundle {self._number}: reserved", value, isa.RESERVED_BITS)
        self._reserved = value

    def _putter(self, slot: Slot) -> Any:
        def put(op: IntEnum, *operands: Any) -> None:
            self.operation(slot, op.name.lower(), *operands)
        return put

    def _check_open(self) -> None:
        if self._state != "open":
            raise ValueError(f"bundle {self._number} must be open, in a `with` statement, "
                             f"but is {self._state}")

    def _checked_slot(self, slot: Slot | str) -> Slot:
        self._check_open()
        if slot not in isa.SLOTS:
            raise ValueError(f"bundle {self._number}: slot must be one of {', '.join(isa.SLOTS)}, "
                             f"not {slot!r}")
        slot = Slot(slot)
        if slot in self._slots:
            raise ValueError(f"bundle {self._number}: slot {slot} is already used")
        return slot

    def _check_field(self, where: str, slot: Slot, field: str, value: int) -> None:
        if field not in isa.SLOTS[slot]:
            raise ValueError(f"{where}: field must be one of {', '.join(isa.SLOTS[slot])}, "
                             f"not {field!r}")
        _check_bits(f"{where}: {field}", value, isa.SLOTS[slot][field])

    def _code(self, where: str, operand: Operand, value: Any) -> _Code:
        """Return the code of ``value`` in an operand's field, and the immediate that it needs."""
        kind = operand.kind
        if kind is Kind.VECTOR_SOURCE and isinstance(value, Vector):
            return isa.VECTOR_FLAG | value.number, None
        if kind in (Kind.SOURCE, Kind.VECTOR_SOURCE):
            return self._source(where, value, vector=kind is Kind.VECTOR_SOURCE)
        if kind is Kind.IMMEDIATE:
            return self._target(where, value)
        expected = REGISTERS[BANKS[kind][0]]
        if not isinstance(value, expected):
            raise TypeError(f"{where} must be a {expected.noun}, not {value!r}")
        if kind is Kind.MASK_OUT and value.number == 0:
            raise ValueError(f"{where} must be a mask register other than m[0], which cannot be "
                             "written")
        return value.number, None

    def _source(self, where: str, value: Any, vector: bool) -> _Code:
        if isinstance(value, Scalar):
            return value.number, None
        if isinstance(value, Immediate):
            return isa.FIRST_IMMEDIATE + value.number, value
        if isinstance(value, Register):
            what = "a vector or scalar register" if vector else "a scalar register"
            raise TypeError(f"{where} must be {what}, a number or a label, not {value!r}")
        key = self._key(where, value)
        if isinstance(key, int):
            short = key - ((key & 1 << 31) << 1)
            if isa.INLINE_MIN <= short <= isa.INLINE_MAX:
                return isa.INLINE_BASE + short, None
        return isa.FIRST_IMMEDIATE, key

    def _target(self, where: str, value: Any) -> _Code:
        if isinstance(value, Immediate):
            return value.number, value
        if isinstance(value, Register):
            raise TypeError(f"{where} must be an address or a label, not {value!r}")
        return 0, self._key(where, value)

    def _key(self, where: str, value: Any) -> int | str:
        """Return what an immediate for ``value`` holds: a word, or a label to resolve later."""
        if isinstance(value, str):
            _check_label(value)
            return value
        try:
            return word(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None

    @staticmethod
    def _check_room(where: str, keys: Sequence[int | str | None], named: Sequence[bool],
                    wanted: Mapping[tuple[Slot, int], tuple[str, int | str]]) -> None:
        """Checks that a bundle has enough free immediates for the values of its operands.

        ``keys`` holds the value or label in each of the bundle's immediates, None if it has none.
        ``named`` says which immediates the program chose itself, such as ``imm1``: they are not
        free. ``wanted`` maps each operand that needs an immediate, by slot and position, to its
        field and its value or label.
        """
        taken = [key or 0 for key, used in zip(keys, named, strict=True) if used]
        others = dict.fromkeys(key for _, key in wanted.values() if key not in keys)
        if len(taken) + len(others) > isa.IMMEDIATES:
            held = ", ".join(map(_shown, [*taken, *others]))
            raise ValueError(f"{where}: a bundle has {isa.IMMEDIATES} immediates, too few for "
                             f"{held}")

    def _place_immediates(self) -> None:
        """Assigns immediates to the operands' values, in the order of slots and operands."""
        order = list(isa.SLOTS)
        for slot, position in sorted(self._wanted, key=lambda at: (order.index(at[0]), at[1])):
            field, key = self._wanted[slot, position]
            if key not in self._keys:
                number = self._named.index(False)
                self._keys[number], self._named[number] = key, True
            self._slots[slot][field] += self._keys.index(key)

    def _check_written(self, where: str, operation: Operation, fields: Mapping[str, int]) -> None:
        for name in written_registers(operation, fields):
            if name in self._written:
                raise ValueError(f"{where}: {name} is already written by {self._written[name]}")

    def _pack(self, labels: Mapping[str, int]) -> int:
        for key in self._keys:
            if isinstance(key, str) and key not in labels:
                raise ValueError(f"bundle {self._number}: label {key!r} is not defined")
        values = tuple(labels[key] if isinstance(key, str) else key or 0 for key in self._keys)
        position = isa.BUNDLE_BITS - 32 * isa.IMMEDIATES - isa.RESERVED_BITS
        return pack(self._slots, values) | self._reserved << position


def _shown(key: int | str | None) -> str:
    """Return the contents of an immediate as text, for messages."""
    return repr(key) if isinstance(key, str) else f"{key:#x}"


def _check_label(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"label must be a string, not {name!r}")
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"label must be an ASCII identifier, not {name!r}")
    if any(name.removeprefix(prefix).isdecimal() for prefix in REGISTERS
           if name.startswith(prefix)):
        raise ValueError(f"label must not look like a register, as {name!r} does")


def _check_bits(what: str, value: int, width: int) -> None:
    if not 0 <= integer(what, value) < 1 << width:
        raise ValueError(f"{what} must fit {width} bits, not {value!r}")
