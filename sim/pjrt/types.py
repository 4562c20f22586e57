"""The PJRT API's numbers for element types, and its error codes."""

from sim.compiler.graph.ir import DType

__all__ = ["Status", "dtype_of", "number_of", "status_of"]

_NUMBERS = {DType.PRED: 1, DType.S8: 2, DType.S16: 3, DType.S32: 4, DType.U8: 6, DType.U16: 7,
            DType.U32: 8, DType.F32: 11, DType.BF16: 13}
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}

_CANCELLED, _INVALID, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL = 1, 3, 8, 12, 13

Status = tuple[int, str]
"""Error code of the PJRT API, 0 for success, and message."""


def dtype_of(number: int) -> DType:
    """Return the element type with this number in the PJRT API."""
    return _DTYPES[number]


def number_of(dtype: DType) -> int:
    """Return the PJRT API's number for an element type."""
    return _NUMBERS[dtype]


def status_of(error: BaseException) -> Status:
    """Return the PJRT API's error code for an exception, and its message."""
    code = _INTERNAL
    if isinstance(error, NotImplementedError):
        code = _UNIMPLEMENTED
    elif isinstance(error, MemoryError):
        code = _EXHAUSTED
    elif isinstance(error, InterruptedError):
        code = _CANCELLED
    elif isinstance(error, ValueError | TypeError):
        code = _INVALID
    return code, str(error) or type(error).__name__
