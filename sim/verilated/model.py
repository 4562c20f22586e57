"""Verilated models that run in this process."""

import ctypes
import functools
import operator
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from sim.closing import Closeable

__all__ = ["Model", "Port"]

_WORD_BITS = 32
MAX_THREADS = 8
WORTH_A_THREAD = 4000
_CLOCK = "clk"
_RESET = "rst"

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Port:
    """A port of a model.

    Attributes
    ----------
    name : str
        Verilog name of the port.
    width : int
        Width in bits.
    is_input : bool
        Whether the port is an input of the model; otherwise it is an output.
    index : int
        Number of the port in the model's C interface.
    """

    name: str
    width: int
    is_input: bool
    index: int

    @functools.cached_property
    def words(self) -> int:
        """Number of 32-bit words that hold a value of the port."""
        return -(-self.width // _WORD_BITS)


class _CPort(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("bits", ctypes.c_uint32),
                ("is_input", ctypes.c_uint32), ("bytes", ctypes.c_uint32))


def _load(path: pathlib.Path) -> ctypes.CDLL:
    """Loads a model's library, and declares the types of its functions."""
    library = ctypes.CDLL(os.fspath(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    model, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    pointer = ctypes.c_void_p
    for name, result, arguments in (
            ("port_count", u32, ()),
            ("ports", ctypes.POINTER(_CPort), ()),
            ("create", model, ()),
            ("destroy", None, (model,)),
            ("error", ctypes.c_char_p, (model,)),
            ("cycle", u64, (model,)),
            ("finished", ctypes.c_int, (model,)),
            ("poke", None, (model, u32, pointer)),
            ("peek", ctypes.c_int, (model, u32, pointer)),
            ("run", ctypes.c_int,
             (model, u64, u32, pointer, pointer, u32, pointer, pointer)),
            ("use_threads", None, (model, u32, u64)),
            ("shared_work", None, (model, ctypes.POINTER(u64), ctypes.POINTER(u64))),
            ("trace", ctypes.c_int, (model, ctypes.c_char_p))):
        function = getattr(library, f"systolith_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


class Model(Closeable):
    """An instance of a verilated module.

    The model has one clock, its input ``clk``, which only `tick`, `reset` and `run` drive. Every
    input is zero until `poke` sets it. A value is an integer or an array of 32-bit words, the
    lowest first.

    Parameters
    ----------
    path : path
        A library from `sim.verilated.build.build_model`. Each `Model` has its own state, even if
        several share a library.

    Raises
    ------
    OSError
        If the library cannot be loaded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Loads the library and creates an instance of the model."""
        self._handle: int | None = None
        self.path = pathlib.Path(path)
        self.library = _load(self.path)
        count = self.library.systolith_port_count()
        self._ports = {
            port.name.decode(): Port(port.name.decode(), port.bits, bool(port.is_input), index)
            for index, port in enumerate(self.library.systolith_ports()[:count])}
        self._handle = self.library.systolith_create()

    @property
    def ports(self) -> Mapping[str, Port]:
        """The model's ports by name."""
        return self._ports

    @property
    def handle(self) -> int:
        """Address of the model (a ``systolith::Model``), for other functions of its `library`.

        Raises
        ------
        RuntimeError
            If the model is closed.
        """
        if self._handle is None:
            raise RuntimeError(f"model {self.path.parent.name} is closed")
        return self._handle

    @property
    def cycle(self) -> int:
        """Number of clock cycles that the model has run."""
        return int(self.library.systolith_cycle(self.handle))

    @property
    def finished(self) -> bool:
        """Whether the design has ended the simulation: it called ``$finish``, or failed."""
        return bool(self.library.systolith_finished(self.handle))

    def poke(self, name: str, value: SupportsIndex | npt.NDArray[np.generic]) -> None:
        """Sets input ``name`` to an integer, or to an array of words of shape (words,).

        Raises
        ------
        KeyError
            If there is no such port.
        TypeError, ValueError
            If the port is not an input, or is the clock, or the value does not fit.
        """
        handle = self.handle
        port = self._settable(name)
        self.library.systolith_poke(handle, port.index, _bytes_of(port, value))

    def peek(self, name: str) -> int:
        """Value of port ``name`` after combinational logic has settled."""
        return int.from_bytes(self._value(name), "little")

    def peek_words(self, name: str) -> Words:
        """Value of port ``name`` after combinational logic has settled, as words, lowest first."""
        return np.frombuffer(memoryview(self._value(name)), np.uint32)

    def tick(self, cycles: int = 1) -> None:
        """Runs clock cycles; registers sample the inputs at the rising edge that ends each cycle.

        Raises
        ------
        RuntimeError
            If the design ends the simulation with an error, or has ended it before.
        """
        self._advance(cycles, [], [], [], [])

    def reset(self, cycles: int = 2) -> None:
        """Holds the input ``rst`` high for ``cycles`` clock cycles."""
        self.poke(_RESET, 1)
        self.tick(cycles)
        self.poke(_RESET, 0)

    def run(self, inputs: Mapping[str, npt.NDArray[np.generic]], outputs: Sequence[str] = (), *,
            cycles: int | None = None) -> dict[str, Words]:
        """Runs one clock cycle for each row of the inputs.

        Parameters
        ----------
        inputs : mapping of str to array, shape (cycles, words) or (cycles,)
            Values of inputs before each rising edge, as 32-bit words or narrower unsigned integers.
            For a port of up to 32 bits, the second axis may be omitted. Other inputs keep their
            values.
        outputs : sequence of str
            Ports to record just after each rising edge.
        cycles : int, optional
            Number of cycles; by default the length of the arrays in ``inputs``.

        Returns
        -------
        dict of str to array of uint32, shape (cycles, words)
            The values of each port. There are fewer rows if the design calls ``$finish`` earlier.

        Raises
        ------
        KeyError, TypeError, ValueError
            If there is no such port, an array is wrong, or the arrays do not agree on the number of
            cycles.
        RuntimeError
            If the design ends the simulation with an error, or has ended it before.
        """
        ports = [self._settable(name) for name in inputs]
        recorded = [self._port(name) for name in outputs]
        sources = []
        for port, rows in zip(ports, inputs.values(), strict=True):
            flat = port.words == 1 and isinstance(rows, np.ndarray) and rows.ndim == 1
            sources.append(_fitting(port, rows[:, np.newaxis] if flat else rows, 2))
        lengths = {len(array) for array in sources}
        if cycles is not None:
            lengths.add(operator.index(cycles))
        if len(lengths) != 1:
            raise ValueError(f"inputs must have the same number of cycles, not {sorted(lengths)!r}")
        (cycles,) = lengths
        sinks = [np.zeros((cycles, port.words), np.uint32) for port in recorded]
        begin = self.cycle
        self._advance(cycles, ports, sources, recorded, sinks)
        done = self.cycle - begin
        return {port.name: sink[:done] for port, sink in zip(recorded, sinks, strict=True)}

    def use_threads(self, threads: int, *, least: int = WORTH_A_THREAD) -> None:
        """Sets the number of threads for kernels that were compiled to be parallel.

        Only the speed depends on it. A new model uses two threads, or one if this process may use
        only one processor.

        Parameters
        ----------
        threads : int
            Maximum number of threads, the calling thread included; 1 to 8.
        least : int
            Threshold in nanoseconds: other threads are used only in cycles in which their work
            is estimated to take at least this long.

        Raises
        ------
        ValueError
            If an argument is out of range.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {threads!r}")
        if not 0 <= least < 1 << 64:
            raise ValueError(f"least must be from 0 to 2**64 - 1, not {least!r}")
        self.library.systolith_use_threads(self.handle, threads, least)

    @property
    def shared_work(self) -> tuple[int, int]:
        """Work of the threads other than the calling one: (cycles, steps).

        The number of cycles in which the other threads were offered work, and the number of kernel
        steps that they executed.
        """
        cycles, steps = ctypes.c_uint64(), ctypes.c_uint64()
        self.library.systolith_shared_work(self.handle, cycles, steps)
        return cycles.value, steps.value

    def trace(self, path: str | os.PathLike[str] | None) -> None:
        """Starts to write waveforms (VCD, one time step per half cycle); with None, stops.

        Raises
        ------
        RuntimeError
            If the model was built without tracing or the file cannot be written.
        """
        self.check(self.library.systolith_trace(
            self.handle, None if path is None else os.fsencode(path)))

    def close(self) -> None:
        """Destroys the model; closing twice does nothing."""
        if self._handle is not None:
            self.library.systolith_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        """Closes the model."""
        self.close()

    def _port(self, name: str) -> Port:
        try:
            return self._ports[name]
        except KeyError:
            raise KeyError(f"port must be one of {', '.join(self._ports)}, not {name!r}") from None

    def _settable(self, name: str) -> Port:
        port = self._port(name)
        if not port.is_input or name == _CLOCK:
            raise ValueError(f"port must be an input other than {_CLOCK}, not {name!r}")
        return port

    def _value(self, name: str) -> ctypes.Array[ctypes.c_uint32]:
        # A ctypes array, since tests call this in every cycle, and NumPy's addresses are slow.
        handle = self.handle
        port = self._port(name)
        words = (ctypes.c_uint32 * port.words)()
        self.check(self.library.systolith_peek(handle, port.index, words))
        return words

    def _advance(self, cycles: int, inputs: Sequence[Port], sources: Sequence[Words],
                 outputs: Sequence[Port], sinks: Sequence[Words]) -> None:
        handle = self.handle
        cycles = operator.index(cycles)
        if cycles < 0:
            raise ValueError(f"cycles must be at least 0, not {cycles!r}")
        if _CLOCK not in self._ports:
            raise RuntimeError(f"model {self.path.parent.name} has no input {_CLOCK}")
        if self.finished:
            raise RuntimeError(f"model {self.path.parent.name} must be running, but its design has "
                               "ended the simulation ($finish, $stop or $fatal); create another "
                               "Model to simulate it again")

        def indices(ports: Sequence[Port]) -> ctypes.Array[ctypes.c_uint32] | None:
            return (ctypes.c_uint32 * len(ports))(
                *(port.index for port in ports)) if ports else None

        def pointers(arrays: Sequence[Words]) -> ctypes.Array[ctypes.c_void_p] | None:
            return (ctypes.c_void_p * len(arrays))(
                *(array.ctypes.data for array in arrays)) if arrays else None

        self.check(self.library.systolith_run(
            handle, cycles, len(inputs), indices(inputs), pointers(sources),
            len(outputs), indices(outputs), pointers(sinks)))

    def check(self, status: int) -> None:
        """Raises the model's error if ``status``, the result of a library function, is not 0."""
        if status:
            message = self.library.systolith_error(self.handle).decode(errors="replace")
            raise RuntimeError(f"model {self.path.parent.name}: {message}")


def _bytes_of(port: Port, value: SupportsIndex | npt.NDArray[np.generic]) -> bytes:
    """Checks a value of ``port``; returns the bytes of its words, for C code."""
    if isinstance(value, np.ndarray):
        return _fitting(port, value, 1).tobytes()
    number = operator.index(value)
    if number < 0 or number >> port.width:
        raise ValueError(f"value of {port.name} must fit {port.width} bits, not {value!r}")
    return number.to_bytes(4 * port.words, "little")


def _fitting(port: Port, words: npt.NDArray[np.generic], axes: int) -> Words:
    """Checks values of ``port``; returns them as a contiguous array of uint32, for C code.

    ``words`` must have ``axes`` axes; its last axis holds the words of one value.

    Raises
    ------
    TypeError, ValueError
        If ``words`` is not an array of unsigned integers, has a wrong shape, or has a value that
        does not fit in the port's width.
    """
    if not isinstance(words, np.ndarray):
        raise TypeError(f"values of {port.name} must be an array, not {words!r}")
    if not np.can_cast(words.dtype, np.uint32):
        raise TypeError(f"values of {port.name} must be unsigned integers of up to 32 bits, "
                        f"not {words.dtype}")
    if words.ndim != axes or words.shape[-1] != port.words:
        shape = ("cycles, " if axes == 2 else "") + f"{port.words}" + ("," if axes == 1 else "")
        raise ValueError(f"values of {port.name} must have shape ({shape}), not {words.shape!r}")
    checked = np.ascontiguousarray(words, np.uint32)
    spare = port.width % _WORD_BITS
    if spare:
        highest = int(checked[..., -1].max(initial=0))
        if highest >> spare:
            raise ValueError(f"values of {port.name} must fit {port.width} bits, "
                             f"but the most significant word of one is {highest:#x}")
    return checked
