"""The machine that runs the benchmarks."""

import pathlib
import platform

__all__ = ["AVX2", "has_avx2", "processor"]

AVX2 = "haswell"
"""The machine to compile for, to measure the kernels' AVX2 backend."""

_CPU = pathlib.Path("/proc/cpuinfo")


def _field(name: str) -> str:
    """A field of the first processor; empty if the system does not tell."""
    if _CPU.is_file():
        for line in _CPU.read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def processor() -> str:
    """The processor's name."""
    return _field("model name") or platform.machine()


def has_avx2() -> bool:
    """Whether models compiled for `AVX2` run here."""
    return {"avx2", "bmi1", "bmi2", "fma", "movbe"} <= set(_field("flags").split())
