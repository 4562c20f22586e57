"""The machine that runs the benchmarks."""

import pathlib
import platform

__all__ = ["AVX2", "has_avx2", "processor"]

AVX2 = "haswell"
"""The ``-march`` value with which kernels are compiled to use AVX2, but not AVX-512."""

_CPU = pathlib.Path("/proc/cpuinfo")


def _field(name: str) -> str:
    """Field ``name`` of the first processor in /proc/cpuinfo; empty if the field is missing."""
    if _CPU.is_file():
        for line in _CPU.read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def processor() -> str:
    """The name of this machine's processor."""
    return _field("model name") or platform.machine()


def has_avx2() -> bool:
    """Whether this machine can run models compiled for `AVX2`."""
    return {"avx2", "bmi1", "bmi2", "fma", "movbe"} <= set(_field("flags").split())
