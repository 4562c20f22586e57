"""The host's view of the processor: numpy arrays in, numpy arrays out."""

from types import TracebackType
from typing import Any, Protocol, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden import mxu as golden_mxu
from golden.numerics import add_f32
from hdl.config import Config
from sim.mxu import MxuModel

__all__ = ["BACKENDS", "Device"]

BACKENDS = ("rtl", "golden")
"""What a device can run on: the simulated hardware, or the numpy model of it."""

_RESULT_BYTES = 256 << 20
"""Most that results may take before the host adds them up."""

Float32 = npt.NDArray[np.float32]


class _Backend(Protocol):
    def matmul(self, a: Float32, b: Float32, transpose_b: bool, progress: tqdm) -> Float32: ...

    def counters(self) -> dict[str, int]: ...

    def close(self) -> None: ...


class _GoldenBackend:
    """Numpy arithmetic; without a clock, all counters are zero."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def matmul(self, a: Float32, b: Float32, transpose_b: bool, progress: tqdm) -> Float32:
        result = golden_mxu.matmul(a, b.T if transpose_b else b, self._config.array)
        progress.update(progress.total)
        return result

    def counters(self) -> dict[str, int]:
        return dict.fromkeys(
            ("cycles", "mxu_active_cycles", "weight_load_cycles", "idle_cycles"), 0)

    def close(self) -> None:
        pass


class _RtlBackend:
    """The matrix unit in RTL. The host cuts and pads the operands and adds the tiles' results."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._model = MxuModel(config)

    def matmul(self, a: Float32, b: Float32, transpose_b: bool, progress: tqdm) -> Float32:
        size = self._config.array
        rows, columns = a.shape[0], b.shape[0 if transpose_b else 1]
        activations = _tiles(a, rows, size, 0.0)[0]
        # Row k of W beyond K must not change a sum: +0 times -0 is -0, the neutral element.
        weights = _tiles(b, size, size, -0.0)
        if transpose_b:
            weights = weights.swapaxes(0, 1)
        depth, width = weights.shape[:2]
        weights = weights.reshape(-1, size, size)
        result = np.empty((rows, width * size), np.float32)

        # Steps run in the order in which the sums need them, as many at once as memory permits.
        steps = [(k, n) for n in range(width) for k in range(depth)]
        at_once = max(1, _RESULT_BYTES // (rows * size * 4))
        for first in range(0, len(steps), at_once):
            batch = steps[first:first + at_once]
            parts = self._model.multiply(
                weights, activations, [(k, k * width + n) for k, n in batch],
                transpose=transpose_b, progress=progress.update)
            for (k, n), part in zip(batch, parts, strict=True):
                total = result[:, n * size:(n + 1) * size]
                total[:] = add_f32(total, part) if k else part
        return result[:, :columns]

    def counters(self) -> dict[str, int]:
        return self._model.counters()

    def close(self) -> None:
        self._model.close()


def _tiles(matrix: Float32, rows: int, columns: int, padding: float) -> npt.NDArray[np.float32]:
    """The matrix cut into tiles: shape (row tiles, column tiles, rows, columns)."""
    high, wide = (-(-length // size) for length, size in
                  zip(matrix.shape, (rows, columns), strict=True))
    padded = np.full((high * rows, wide * columns), padding, np.float32)
    padded[:matrix.shape[0], :matrix.shape[1]] = matrix
    return np.ascontiguousarray(
        padded.reshape(high, rows, wide, columns).swapaxes(1, 2))


def _operand(name: str, value: object) -> Float32:
    """The matrix as float32, which holds every bfloat16 exactly."""
    # A masked array is one to numpy, but there is no product without the masked elements.
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a numpy array, not {type(value).__name__}")
    if value.dtype not in (np.float32, ml_dtypes.bfloat16):
        raise TypeError(f"{name} must be of dtype float32 or bfloat16, not {value.dtype}")
    if value.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {value.shape!r}")
    # Signalling NaN and subnormals pass unharmed: the hardware decides what becomes of them.
    return value.astype(np.float32)


class Device:
    """A processor, open for work. Use `Device.open`.

    Results do not depend on the backend, nor on anything but the operands and the array's size.
    Threads may share a device: it does one product after the other.
    """

    def __init__(self, config: Config, backend: str) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a preset's name or a Config, not {config!r}")
        if not isinstance(backend, str):
            raise TypeError(f"backend must be a string, not {backend!r}")
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
        self._config = config
        self._backend_name = backend
        self._backend: _Backend | None = (
            _RtlBackend(config) if backend == "rtl" else _GoldenBackend(config))

    @classmethod
    def open(cls, config: str | Config = "v2", backend: str = "rtl") -> Self:
        """Opens a device; building its simulation takes some seconds the first time.

        Parameters
        ----------
        config : str or Config
            A preset (`tiny`, `small`, `v2`) or parameters.
        backend : str
            ``"rtl"`` simulates the hardware, ``"golden"`` is the numpy model, with the same bits.

        Raises
        ------
        TypeError, ValueError
            If there is no such configuration or backend.
        RuntimeError
            If the simulation cannot be built; the message says what is missing.
        """
        return cls(Config.preset(config) if isinstance(config, str) else config, backend)

    @property
    def config(self) -> Config:
        """The device's parameters."""
        return self._config

    @property
    def backend(self) -> str:
        """What the device runs on."""
        return self._backend_name

    def matmul(self, a: npt.NDArray[Any], b: npt.NDArray[Any], *, transpose_b: bool = False,
               progress: bool = False) -> Float32:
        """The matrix product of ``a`` and ``b``, to the bits of docs/numerics.md.

        Parameters
        ----------
        a : array of float32 or bfloat16, shape (M, K)
            Activations; float32 is rounded to bfloat16 at the array's edge.
        b : array of float32 or bfloat16, shape (K, N); (N, K) if ``transpose_b``
            Weights, likewise.
        transpose_b : bool
            Multiply by the transpose of ``b``, which the array makes while it loads the weights.
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
        RuntimeError
            If the device is closed.
        """
        backend = self._open_backend()
        for flag, value in (("transpose_b", transpose_b), ("progress", progress)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be True or False, not {value!r}")
        left, right = _operand("a", a), _operand("b", b)
        if left.shape[1] != right.shape[1 if transpose_b else 0]:
            kind = "columns" if transpose_b else "rows"
            raise ValueError(f"b must have as many {kind} as a has columns, but a has shape "
                             f"{a.shape!r} and b {b.shape!r}")
        rows, depth = left.shape
        columns = right.shape[0 if transpose_b else 1]
        if not (rows and columns and depth):
            return np.zeros((rows, columns), np.float32)
        size = self._config.array
        total = rows * -(-depth // size) * -(-columns // size)
        with tqdm(total=total, unit="row", disable=not progress, leave=False) as bar:
            return backend.matmul(left, right, transpose_b, bar)

    def counters(self) -> dict[str, int]:
        """Cycle counters since the device was opened.

        Returns
        -------
        dict of str to int
            ``cycles``: all cycles simulated, each of which counts as one of ``mxu_active_cycles``
            (an activation row entered the array), ``weight_load_cycles`` (otherwise, a weight row
            did) and ``idle_cycles``. An exception within a product resets the hardware, and the
            counters with it. The golden backend has no clock: all are 0.

        Raises
        ------
        RuntimeError
            If the device is closed.
        """
        return self._open_backend().counters()

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _open_backend(self) -> _Backend:
        if self._backend is None:
            raise RuntimeError("device is closed")
        return self._backend
