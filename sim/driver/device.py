"""The host's interface to the processor: copies numpy arrays, runs programs, reads states.

    with Device.open("tiny") as device:
        buffer = device.allocate(1 << 12)
        device.copy_in(buffer, array)
        device.load(0, program)
        device.start(0)
        device.wait(cycles=100_000)
        result = device.copy_out(buffer, np.float32, array.shape)

`Device` consists of parts, each in a module of its own: `sim.driver.session`, `memory`, `counters`,
`cores`, `execution` and `residents`.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hdl.chip.chip import check_chip
from hdl.config import Config
from sim.compiler.dense.layers import Dense, check_layers, check_matrix
from sim.compiler.dense.program import compile_layers
from sim.driver.backend import BACKENDS, Backend, open_backend
from sim.driver.cores import Cores
from sim.driver.residents import Residents
from sim.models.chip import ChipModel
from sim.models.hbm import HbmOptions

__all__ = ["DEFAULT_BAUD", "Device", "chip_config"]

DEFAULT_BAUD = 1_000_000
"""Default rate of the serial line in bits a second, here and in `make fpga`."""

Float32 = npt.NDArray[np.float32]


def chip_config(config: str | Config) -> Config:
    """Return the preset named ``config``, or ``config`` itself; check that a chip can have it.

    Raises
    ------
    TypeError, ValueError
        If there is no such preset, or a chip in RTL cannot have this configuration, even if the
        golden model could.
    """
    made = Config.preset(config) if isinstance(config, str) else config
    if not isinstance(made, Config):
        raise TypeError(f"config must be a preset's name or a Config, not {config!r}")
    check_chip(made)
    return made


class Device(Residents):
    """A chip that a host uses. Made by `Device.open`.

    Results depend only on the operands and the array's size, not on the backend.

    Threads may share a device. Each method call is atomic, except `wait` and `run`: while they
    wait, other threads may call methods, for example `stop`. Several devices may be open at the
    same time.

    If a method ends early (Ctrl-C, a fault, a timeout), the device stays usable. `stop` or `reset`
    ends programs that may still run.
    """

    def __init__(self, backend: Backend, name: str, chip: tuple[int, int] | None = None,
                 lock: AbstractContextManager[Any] | None = None,
                 peers: list[Cores] | None = None) -> None:
        try:
            # A board has its own size of HBM, so the backend's configuration counts.
            super().__init__(backend.config)
        except BaseException:
            backend.close()
            raise
        self._backend_name, self._backend = name, backend
        # For a chip of a pod: its coordinates, and the lock and the list of chips that all devices
        # of the pod share.
        self._chip = chip
        self._lock = lock or self._lock
        if peers is not None:
            peers.append(self)
            self._peers = peers

    @classmethod
    def open(cls, config: str | Config = "v2", backend: str = "rtl", *,
             memory: HbmOptions | None = None,
             trace: str | os.PathLike[str] | None = None, port: str | None = None,
             baud: int = DEFAULT_BAUD) -> Self:
        """Open a device.

        The first time, this builds the simulation of the configuration, which can take minutes.

        Parameters
        ----------
        config : str or Config
            Name of a preset (`tiny`, `small`, `v2`, `fpga`), or parameters. On a board, the size of
            HBM is the board's: see `config`.
        backend : str
            ``"rtl"`` simulates the hardware; ``"golden"`` is the numpy model, whose results have
            the same bits; ``"serial"`` is a board (docs/fpga.md).
        memory : HbmOptions, optional
            Behaviour of the memory in ``"rtl"``: latency, bandwidth, random stalls.
        trace : path, optional
            Only for ``"rtl"``: common prefix of two files to write. ``trace="build/run"`` makes
            ``build/run.json``, a trace for ui.perfetto.dev, and ``build/run.vcd``, waveforms
            (docs/tracing.md). The files are complete when the device is closed. Tracing uses
            another build of the simulation, which is slower.
        port : str
            Only for ``"serial"``, which needs it: name of the serial port, such as
            ``/dev/ttyUSB0``.
        baud : int
            Only for ``"serial"``: bits per second on the line, the ``BAUD`` of `make fpga`.

        Raises
        ------
        TypeError, ValueError
            If there is no such preset or backend, or if a chip cannot have this configuration; if
            ``trace`` is not a path, or an option is given for a backend that does not have it.
        OSError
            If the files of the trace cannot be written.
        BoardError
            If there is no board at the port and rate, or the board holds another chip.
        ImportError
            If ``"serial"`` lacks pyserial.
        RuntimeError
            If the simulation cannot be built; the message says what is missing.
        """
        checked = chip_config(config)
        if not isinstance(backend, str):
            raise TypeError(f"backend must be a string, not {backend!r}")
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
        if not isinstance(memory, HbmOptions | None):
            raise TypeError(f"memory must be HbmOptions or None, not {memory!r}")
        return cls(open_backend(backend, checked, memory, trace, port, baud), backend)

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self._backend_name

    @property
    def model(self) -> ChipModel | None:
        """The chip simulated in RTL, whose memory model can be changed; None for other backends.

        Raises
        ------
        RuntimeError
            If the device is closed.
        """
        with self._open() as backend:
            return backend.model

    def matmul(self, a: npt.NDArray[Any], b: npt.NDArray[Any], *, transpose_b: bool = False,
               progress: bool = False) -> Float32:
        """Multiply the matrices ``a`` and ``b``; docs/numerics.md defines every bit of the result.

        The compiler writes a program for both cores, and reuses it for later operands of the same
        shapes (docs/compiler.md). The program overwrites instruction memory, scalar memory, vector
        memory and registers as it needs; it does not change buffers that the caller allocated.

        Parameters
        ----------
        a : array of float32 or bfloat16, shape (M, K)
            Activations; float32 is rounded to bfloat16 at the array's edge.
        b : array of float32 or bfloat16, shape (K, N); (N, K) if ``transpose_b``
            Weights; float32 is rounded to bfloat16, too. bfloat16 weights take half of the memory
            and of the transfers' time.
        transpose_b : bool
            Multiply by the transpose of ``b``; the array transposes weights while it loads them.
        progress : bool
            Show a progress bar.

        Returns
        -------
        array of float32, shape (M, N)
            Empty where M or N is 0, +0.0 where K is 0.

        Raises
        ------
        TypeError
            If an operand is not an array of float32 or bfloat16.
        ValueError
            If an operand is not a matrix, or their shapes do not fit.
        MemoryError
            If the operands and the result do not fit in the free part of HBM, or if the chip's
            memories are too small for the program (docs/architecture.md).
        CoreFaultError
            If memory answers with an error, or a watchdog expires.
        RuntimeError
            If a program is running, or the device is closed.
        """
        for flag, value in (("transpose_b", transpose_b), ("progress", progress)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be True or False, not {value!r}")
        with self._open():
            left, right = check_matrix("a", a), check_matrix("b", b)
            if left.shape[1] != right.shape[1 if transpose_b else 0]:
                kind = "columns" if transpose_b else "rows"
                raise ValueError(f"b must have as many {kind} as a has columns, but a has shape "
                                 f"{a.shape!r} and b {b.shape!r}")
            return self._layers(left, [Dense(right, transpose=transpose_b)], progress)[0]

    def dense(self, x: npt.NDArray[Any], layers: Sequence[Dense], *,
              progress: bool = False) -> list[Float32]:
        """Compute dense layers; the results of each layer are the input of the next.

        All layers are one program on each core, which runs without the host. The results are those
        of the golden product, of fp32 addition and of `fmax` (docs/numerics.md). The only parameter
        of the chip that affects them is the array's size. Otherwise as `matmul`.

        Parameters
        ----------
        x : array of float32 or bfloat16, shape (M, K)
            Input of the first layer.
        layers : sequence of Dense
            One or more.
        progress : bool
            Show a progress bar.

        Returns
        -------
        list of arrays of float32, shape (M, N of the layer)
            The result of each layer. Only M may be 0.

        Raises
        ------
        TypeError, ValueError
            If an array has another type or shape.
        MemoryError
            If parameters and results do not fit in the free part of HBM, or if the chip's memories
            are too small for the program.
        CoreFaultError
            If memory answers with an error, or a watchdog expires.
        RuntimeError
            If a program is running, or the device is closed.
        """
        if not isinstance(progress, bool):
            raise TypeError(f"progress must be True or False, not {progress!r}")
        with self._open():
            left = check_matrix("x", x)
            return self._layers(left, check_layers(layers, left.shape[1]), progress)

    def _layers(self, x: npt.NDArray[Any], layers: Sequence[Dense],
                progress: bool) -> list[Float32]:
        """Compile and run checked layers; if an operand is empty, return the results without a run.

        ``x`` has the shape (M, K), each result the shape (M, N of its layer).
        """
        self._last_run = {}
        kinds = tuple(layer.kind for layer in layers)
        if not x.size or not all(kind.columns for kind in kinds):
            return [np.zeros((len(x), kind.columns), np.float32) for kind in kinds]
        program = compile_layers(self._config, *x.shape, kinds)
        outputs = self.execute(program.executable, *program.arrays(x, layers), progress=progress)
        return program.results(outputs)
