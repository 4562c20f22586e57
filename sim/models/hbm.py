"""Python interface of the model of high-bandwidth memory (sim/models/cpp/hbm.hpp)."""

import ctypes
import pathlib
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from hdl.checks import integer
from sim.closing import Closeable
from sim.verilated.build import build_library

__all__ = ["HBM_SOURCES", "AxiPins", "Hbm", "HbmOptions", "hbm_library"]

_CPP = pathlib.Path(__file__).with_name("cpp")

HBM_SOURCES = {name: (_CPP / name).read_text() for name in ("hbm.cpp", "hbm.hpp")}
"""C++ files by name, for models whose own C++ code connects their ports to the memory."""


@dataclass(frozen=True)
class HbmOptions:
    """Timing of the memory.

    Attributes
    ----------
    latency : int
        Minimum number of cycles from the handshake of a read's address to its first beat, and from
        a write's last beat to its response; 1 or more.
    beats, cycles : int
        Bandwidth: on average a channel moves at most ``beats`` beats in ``cycles`` cycles, reads
        and writes of all cores together. 0 beats: no limit.
    outstanding : int
        Maximum number of read bursts, and maximum number of write bursts, that a port has in
        flight; 1 or more.
    stalls : int
        Probability, in units of 1/65,536, that a handshake is delayed in a cycle; less than 65,536.
    seed : int
        Seed of the random stalls: equal seeds and traffic give equal timing.
    """

    latency: int = 40
    beats: int = 0
    cycles: int = 1
    outstanding: int = 64
    stalls: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
                ("latency", 1, 1 << 32), ("beats", 0, 1 << 31), ("cycles", 1, 1 << 31),
                ("outstanding", 1, 1 << 20), ("stalls", 0, (1 << 16) - 1),
                ("seed", 0, (1 << 64) - 1)):
            object.__setattr__(self, name, integer(name, getattr(self, name), low, high))


_COUNTERS = ("cycles", "read_bursts", "read_beats", "write_bursts", "write_beats",
             "error_beats")


class _Options(ctypes.Structure):
    """`HbmOptions` as C++ code takes them; mirrors ``Options`` in hbm.cpp."""

    _fields_ = (("latency", ctypes.c_uint64), ("seed", ctypes.c_uint64),
                *((name, ctypes.c_uint32) for name in ("beats", "cycles", "outstanding",
                                                       "stalls")))


class _Counters(ctypes.Structure):
    """Counts of cycles, bursts and beats; mirrors ``HbmCounters`` in hbm.hpp."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _COUNTERS)


class AxiPins(ctypes.Structure):
    """Variables that replace the pins of a port that is not connected to a verilated model.

    Mirrors ``Variables`` in hbm.cpp.
    """

    _fields_ = (("awaddr", ctypes.c_uint64), ("araddr", ctypes.c_uint64),
                *((name, ctypes.c_uint8) for name in (
                    "awid", "awlen", "awsize", "awburst", "awvalid", "awready",
                    "wlast", "wvalid", "wready", "bid", "bresp", "bvalid", "bready",
                    "arid", "arlen", "arsize", "arburst", "arvalid", "arready",
                    "rid", "rresp", "rlast", "rvalid", "rready")),
                ("wstrb", ctypes.c_uint8 * 16),
                ("wdata", ctypes.c_uint8 * 128), ("rdata", ctypes.c_uint8 * 128))


def hbm_library() -> pathlib.Path:
    """Returns the shared library with only the memory model; builds it unless it exists."""
    return build_library("hbm", HBM_SOURCES | {
        "export.hpp": (_CPP.parents[1] / "verilated" / "cpp" / "export.hpp").read_text()})


def _declare(library: ctypes.CDLL) -> None:
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    status = ctypes.c_int
    for name, result, arguments in (
            ("error", ctypes.c_char_p, ()),
            ("create", pointer, (u32, u32, u32, u64, pointer)),
            ("destroy", None, (pointer,)),
            ("configure", status, (pointer, ctypes.POINTER(_Options))),
            ("fail", status, (pointer, u64, u64, u32, u32, u32)),
            ("heal", None, (pointer,)),
            ("memory", pointer, (pointer,)),
            ("counters", None, (pointer, ctypes.POINTER(_Counters))),
            ("idle", u32, (pointer,)),
            ("reset", None, (pointer,)),
            ("bind", status, (pointer, u32, u32, ctypes.POINTER(AxiPins))),
            ("sample", status, (pointer,)),
            ("drive", None, (pointer,)),
            ("run", status, (pointer, u64))):
        function = getattr(library, f"systolith_hbm_{name}")
        function.restype = result
        function.argtypes = arguments


class Hbm(Closeable):
    """A memory, initially zero, with AXI4 ports: ``channels`` ports for each of ``cores`` cores.

    A row has ``channels * channel_bytes`` bytes, divided equally between the channels: the first
    part belongs to channel 0. A channel's part of row ``r`` is at address
    ``r * channel_bytes`` of this channel.

    Parameters
    ----------
    library : ctypes.CDLL
        A library that contains `HBM_SOURCES`, such as `hbm_library`.
    cores, channels : int
        Number of cores, and number of ports of each core.
    channel_bytes : int
        Width of a port's data: 4, 8, ... 128 bytes.
    bytes : int
        Size of the memory in bytes, a multiple of a row. Pages never written use no host memory.
    memory : array, optional
        A contiguous array of ``bytes`` bytes that holds the contents. By default the model
        allocates one.

    Raises
    ------
    ValueError
        If an argument is out of range, or the memory cannot be allocated.
    """

    def __init__(self, library: ctypes.CDLL, cores: int, channels: int, channel_bytes: int,
                 bytes: int, *, memory: npt.NDArray[np.generic] | None = None) -> None:
        self._handle: int | None = None
        if memory is not None and (memory.nbytes != bytes or not memory.flags.c_contiguous):
            raise ValueError(f"memory must be contiguous and have {bytes} bytes, not "
                             f"{memory.nbytes}")
        _declare(library)
        self._library = library
        self._bytes = bytes
        self._pins: list[AxiPins] = []
        self._given = memory
        handle = library.systolith_hbm_create(
            cores, channels, channel_bytes, bytes, None if memory is None else memory.ctypes.data)
        if not handle:
            raise ValueError(self._error())
        self._handle = handle

    @property
    def handle(self) -> int:
        """Address of the C++ object (a ``systolith::Hbm``), for other functions of its library.

        Raises
        ------
        RuntimeError
            If the memory is closed.
        """
        if self._handle is None:
            raise RuntimeError("the memory is closed")
        return self._handle

    def configure(self, options: HbmOptions) -> None:
        """Changes the memory's timing from the next cycle on."""
        self._check(self._library.systolith_hbm_configure(
            self.handle, _Options(**asdict(options))))

    def fail(self, address: int, count: int, response: int, *, reads: bool = True,
             writes: bool = True) -> None:
        """Makes all later accesses to a range of memory fail.

        Parameters
        ----------
        address, count : int
            First byte address and number of bytes.
        response : int
            2 (SLVERR) or 3 (DECERR). A burst of writes gets the worst response of its beats.
        reads, writes : bool
            Whether reads fail, and whether writes do. A write that fails does not change memory.
        """
        if response not in (2, 3):
            raise ValueError(f"response must be 2 (SLVERR) or 3 (DECERR), not {response!r}")
        self._check(self._library.systolith_hbm_fail(self.handle, address, count, response,
                                                     reads, writes))

    def heal(self) -> None:
        """Undoes every `fail`."""
        self._library.systolith_hbm_heal(self.handle)

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """All bytes of the memory, which may be read and written between cycles until `close`."""
        start = self._library.systolith_hbm_memory(self.handle)
        return np.ctypeslib.as_array((ctypes.c_uint8 * self._bytes).from_address(start))

    @property
    def counters(self) -> dict[str, int]:
        """Counts of all ports since the memory was created.

        The keys are ``cycles``, ``read_bursts``, ``read_beats``, ``write_bursts``, ``write_beats``,
        and ``error_beats``, the beats of reads and of writes that got an error response.
        """
        counters = _Counters()
        self._library.systolith_hbm_counters(self.handle, counters)
        return {name: int(getattr(counters, name)) for name in _COUNTERS}

    @property
    def idle(self) -> bool:
        """Whether no burst is in flight."""
        return bool(self._library.systolith_hbm_idle(self.handle))

    def reset(self) -> None:
        """Drops all bursts in flight, as the masters do in reset; the contents remain."""
        self._library.systolith_hbm_reset(self.handle)

    def bind(self, core: int, channel: int) -> AxiPins:
        """Connects the port of a core's channel to new variables, and returns these."""
        pins = AxiPins()
        self._check(self._library.systolith_hbm_bind(self.handle, core, channel, pins))
        self._pins.append(pins)
        return pins

    def sample(self) -> None:
        """Samples the masters' outputs in this cycle.

        Raises
        ------
        RuntimeError
            If a master violates the protocol; the message has the channel, the cycle and the rule.
        """
        self._check(self._library.systolith_hbm_sample(self.handle))

    def drive(self) -> None:
        """Drives the masters' inputs for the next cycle."""
        self._library.systolith_hbm_drive(self.handle)

    def run(self, cycles: int) -> None:
        """Runs ``cycles`` cycles, with constant outputs of the masters.

        Raises
        ------
        RuntimeError
            If a master violates the protocol.
        """
        self._check(self._library.systolith_hbm_run(self.handle, cycles))

    def close(self) -> None:
        """Frees the memory; closing twice does nothing."""
        if self._handle is not None:
            self._library.systolith_hbm_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        """Frees the memory."""
        self.close()

    def _error(self) -> str:
        return str(self._library.systolith_hbm_error().decode(errors="replace"))

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(self._error())
