"""The host's accesses to the registers of a simulated chip."""

import ctypes
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from hdl.axi.interface import Resp
from hdl.checks import integer
from hdl.chip.registers import (
    ACCESS_ADDRESS_BITS,
    CORE_REGISTERS,
    GLOBAL_REGISTERS,
    LINK_REGISTERS,
    Register,
    address,
    chip_registers,
)
from hdl.core.interface import Space
from sim.models.chip.simulation import NO_LIMIT, ChipSimulation, Words

__all__ = ["RegisterError", "RegisterPort", "access_table", "check_answers"]

_ACCESS = np.dtype([("address", "u4"), ("data", "u4"), ("write", "u4"), ("response", "u4")])
"""An access of the host and the chip's response; mirrors ``Access`` in chip.cpp."""


class RegisterError(Exception):
    """The chip refused an access to a register.

    Attributes
    ----------
    address : int
        Byte address of the register.
    write : bool
        Whether the access was a write.
    response : Resp
        The chip's response.
    """

    def __init__(self, address: int, write: bool, data: int, response: Resp) -> None:
        self.address = address
        self.write = write
        self.response = response
        what = f"write of {data:#x} to" if write else "read of"
        super().__init__(f"{what} {_register_name(address)} was refused ({response.name})")


def _register_name(number: int) -> str:
    for core in (None, 0, 1):
        for register in (GLOBAL_REGISTERS | LINK_REGISTERS) if core is None else CORE_REGISTERS:
            if address(register, core) == number:
                return f"{register} of " + ("the chip" if core is None else f"core {core}")
    return f"address {number:#x}"


def access_table(accesses: Sequence[tuple[bool, int, int]]) -> np.ndarray:
    """Returns accesses (write, address, data) as an array of ``Access`` of chip.cpp."""
    return np.array([(address, data, write, 0) for write, address, data in accesses], _ACCESS)


def check_answers(table: np.ndarray) -> None:
    """Raises a `RegisterError` if the chip has refused the last access of an `access_table`."""
    if len(table) and table[-1]["response"]:
        last = table[-1]
        raise RegisterError(int(last["address"]), bool(last["write"]), int(last["data"]),
                            Resp(int(last["response"])))


class RegisterPort(ChipSimulation):
    """The chip's AXI4-Lite port: registers, and words of a core's address spaces."""

    def read(self, register: str | Register, *, core: int | None = None) -> int:
        """Reads a register of the chip or of a core.

        Parameters
        ----------
        register : str or Register
            A register of `hdl.chip.registers.GLOBAL_REGISTERS`, or with ``core`` one of
            `CORE_REGISTERS`; or the register's name.
        core : int, optional
            Number of the core whose register is read.

        Raises
        ------
        KeyError, ValueError
            If there is no such register or core.
        RegisterError
            If the chip refuses the access; the message names the register.
        """
        return self.read_address(self._address(register, core)[0])

    def read_fields(self, register: str | Register, *, core: int | None = None) -> dict[str, int]:
        """Reads a register, as `read` does; returns its fields by name."""
        number, found = self._address(register, core)
        return found.unpack(self.read_address(number))

    def write(self, register: str | Register, value: SupportsIndex | None = None, *,
              core: int | None = None, **fields: int) -> None:
        """Writes a register: either a value, or fields by name, with zeros in all other fields.

        Raises
        ------
        TypeError
            If both a value and fields are given, or neither.
        KeyError, ValueError, RegisterError
            If there is no such register or core; if a value does not fit; if the chip refuses the
            access.
        """
        number, found = self._address(register, core)
        if (value is None) == (not fields):
            raise TypeError(f"{found.name} must be given either a value or fields")
        self.write_address(number, found.pack(**fields) if value is None else value)

    def read_address(self, at: SupportsIndex) -> int:
        """Reads the word at byte address ``at``, even if no register has this address."""
        return int(self._accesses([(False, integer("address", at, 0, 0xFFFF), 0)])[0])

    def write_address(self, at: SupportsIndex, value: SupportsIndex) -> None:
        """Writes a word to byte address ``at``, even if no register has this address."""
        self._accesses([(True, integer("address", at, 0, 0xFFFF),
                         integer("value", value, 0, 0xFFFFFFFF))])

    def write_words(self, core: int, space: Space, at: int, words: npt.ArrayLike) -> None:
        """Writes words of a core's address space from address ``at`` on.

        The accesses go through the core's registers ACCESS_ADDRESS and ACCESS_DATA.
        """
        given = np.asarray(words)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "ui"):
            raise TypeError(f"words must be a list of integers, not {words!r}")
        self._accesses([self._access_address(core, space, at), *(
            (True, self._address("ACCESS_DATA", core)[0], integer("word", word, 0, 0xFFFFFFFF))
            for word in given.tolist())])

    def read_words(self, core: int, space: Space, at: int, count: int) -> Words:
        """Reads ``count`` words of a core's address space from address ``at`` on.

        The accesses go through the core's registers ACCESS_ADDRESS and ACCESS_DATA.
        """
        number = self._address("ACCESS_DATA", core)[0]
        return self._accesses([self._access_address(core, space, at),
                               *([(False, number, 0)] * count)])[1:]

    def _access_address(self, core: int, space: Space, at: int) -> tuple[bool, int, int]:
        first = integer("address", at, 0, (1 << ACCESS_ADDRESS_BITS) - 1)
        number, register = self._address("ACCESS_ADDRESS", core)
        return True, number, register.pack(ADDRESS=first, SPACE=Space(space).value)

    def _address(self, register: str | Register, core: int | None) -> tuple[int, Register]:
        name = register.name if isinstance(register, Register) else register
        found = (chip_registers(self._config) if core is None else CORE_REGISTERS).get(name)
        if found is None:
            of = "the chip" if core is None else "a core"
            raise KeyError(f"register must be one of {of}, not {name!r}")
        return address(name, None if core is None else self._core(core)), found

    def _accesses(self, accesses: Sequence[tuple[bool, int, int]]) -> Words:
        """Makes accesses (write, address, data) in order; returns the data of all accesses.

        Raises
        ------
        RegisterError
            If the chip refuses an access; the accesses after it are not made.
        """
        table = access_table(accesses)
        done = ctypes.c_uint64()
        with self._lock:
            try:
                while done.value < len(table):
                    room = NO_LIMIT if self.together is None else self.together.room()
                    left = ctypes.c_uint64(room)
                    self.advance("access", table.ctypes.data, len(table), done, left)
                    if self.together is not None:
                        self.together.passed(room - left.value)
                    check_answers(table[:done.value])
            finally:
                self._note_watchdogs(accesses[:done.value])
        return table["data"].copy()

    def _note_watchdogs(self, accesses: Sequence[tuple[bool, int, int]]) -> None:
        """Remembers which cores have a watchdog after ``accesses``, which may write WATCHDOG.

        `run` must not treat such a core as at rest while it waits.
        """
        for core in range(self._config.cores):
            watchdog = address("WATCHDOG", core)
            for write, number, data in accesses:
                if write and number & ~3 == watchdog:
                    self._watched[core] = data != 0
