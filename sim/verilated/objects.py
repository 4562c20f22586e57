"""Compiles C++ to object files; models share those whose source includes no header of a model."""

import pathlib
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hdl.store import digest, keep
from sim.verilated.cache import code_text
from sim.verilated.toolchain import Toolchain

__all__ = ["JOBS", "compile_units", "model_headers", "model_units", "precompiled_headers",
           "recipe_text", "run_tool", "runtime_objects", "shared_objects"]

JOBS = 2
"""Maximum number of compilers that run at the same time."""
_TAIL_LINES = 40
_PRECOMPILED = "headers.h"
_MODEL_HEADERS = ("verilated.h", "algorithm", "atomic", "cstdint", "cstring", "memory", "stdexcept",
                  "string", "thread", "vector")
"""Headers that the C++ files of every model include."""
_SLOW = "#include <immintrin.h>"
"""Line of a C++ file that includes the header of SIMD instructions. The compiler needs more time to
read this header than to compile a small kernel."""
_KERNEL_HEADERS = ("immintrin.h", "atomic", "cstddef", "cstdint", "cstring", "memory", "new",
                   "string", "vector")
"""Headers that kernels include. They are precompiled for units that contain the line `_SLOW`."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)?', re.MULTILINE)
_VERILATOR_HEADER = re.compile(r"verilated|svdpi|V[a-z]\w*\.h")


def recipe_text() -> str:
    """Source text of the code that builds objects and libraries: part of their cache keys."""
    here = pathlib.Path(__file__)
    return "\n".join(code_text(path.read_text())
                     for path in (here.with_name("build.py"), here.with_name("classes.py"), here))


def shared_objects(units: Sequence[str], files: Mapping[str, str], tools: Toolchain,
                   log: pathlib.Path, light: Collection[str] = ()) -> dict[str, pathlib.Path]:
    """Return object files of ``units`` that depend on no verilated class; each is compiled once.

    The cache key of a unit contains its text, the compiler's flags, and the tools' identity. It
    also contains the texts of the headers in ``files`` that the unit includes, directly or
    indirectly. A unit is compiled in a folder that has only the unit and these headers.

    Parameters
    ----------
    units : sequence of str
        Names of the C++ files to compile.
    files : mapping of str to str
        Texts of these units, and of the headers that they may include, by file name.
    tools : Toolchain
        The compiler.
    log : pathlib.Path
        The compiler's output is appended to this file.
    light : collection of str
        Units to compile in half the time, with fewer optimisations.

    Returns
    -------
    dict of str to pathlib.Path
        Object file by unit. Units that depend on a model are missing: they include a header of
        Verilator, or a quoted header that is not in ``files``.

    Raises
    ------
    RuntimeError
        If the compiler rejects a unit.
    """
    needs = {unit: _needs(unit, files) for unit in units}
    shared = {unit: needed for unit, needed in needs.items() if needed is not None}
    with ThreadPoolExecutor(JOBS) as pool:
        objects = pool.map(lambda unit: _object(unit, shared[unit], tools, log, unit in light),
                           shared)
        return dict(zip(shared, objects, strict=True))


def model_units(units: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """The ``units`` that `shared_objects` leaves out, because they depend on a model's headers."""
    return [unit for unit in units if _needs(unit, files) is None]


def _needs(unit: str, files: Mapping[str, str]) -> dict[str, str] | None:
    """Texts of the unit and of the headers in ``files`` that it includes, by file name.

    None if the unit includes a header that is generated for each model: then it can be compiled
    only as a part of a model.
    """
    needed: dict[str, str] = {}
    left = [unit]
    while left:
        name = left.pop()
        if name in needed:
            continue
        needed[name] = files[name]
        for quoted, system in _INCLUDE.findall(files[name]):
            included = quoted or system
            if included in files:
                left.append(included)
            elif not system or _VERILATOR_HEADER.match(system):
                return None  # also for a name that a macro makes
    return dict(sorted(needed.items()))


def _object(unit: str, needed: Mapping[str, str], tools: Toolchain, log: pathlib.Path,
            light: bool) -> pathlib.Path:
    # Precompiled headers are valid for all levels of optimisation but -O0.
    flags = (*tools.cxx_flags, *(("-O1",) if light else ()), "-I.")

    def make(target: pathlib.Path) -> None:
        # Another machine would need precompiled headers of its own, which few objects would use.
        slow = tools.march == "native" and any(_SLOW in text for text in needed.values())
        headers = precompiled_headers(_KERNEL_HEADERS, tools.cxx_flags, tools, log) if slow else ()
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}-") as folder:
            for name, text in needed.items():
                (pathlib.Path(folder) / name).write_text(text)
            run_tool([*tools.cxx, *flags, *headers, "-c", unit, "-o", str(target)],
                     pathlib.Path(folder), tools.environment(), log)

    return keep("objects", f"{pathlib.Path(unit).stem}.o",
                digest([unit, needed, flags, tools.identity()]), make)


def runtime_objects(units: Sequence[str], flags: Sequence[str], tools: Toolchain,
                    log: pathlib.Path) -> list[pathlib.Path]:
    """Object files of parts of Verilator's run-time library, each compiled at most once.

    They serve models for all types of processors.

    Parameters
    ----------
    units : sequence of str
        Names of the C++ files.
    flags : sequence of str
        All arguments of the compiler except the files and the folders of Verilator's headers; no
        processor type.
    tools : Toolchain
        The compiler.
    log : pathlib.Path
        The compiler's output is appended to this file.

    Raises
    ------
    RuntimeError
        If the compiler rejects a file.
    """
    tools, recipe = replace(tools, march=""), recipe_text()

    def compile_one(unit: str) -> pathlib.Path:
        source = tools.verilator_root / "include" / unit
        key = digest([unit, list(flags), recipe, tools.identity()])
        return keep("objects", f"{source.stem}.o", key, lambda target: compile_units(
            [(source, target, [*flags, *tools.include_flags])], tools, log))

    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(compile_one, units))


def model_headers(flags: Sequence[str], tools: Toolchain, log: pathlib.Path) -> tuple[str, ...]:
    """Compiler arguments for precompiled headers of a verilated class: see `precompiled_headers`.

    Reading the headers takes a second, reading the precompiled ones a fifth of that.
    """
    return precompiled_headers(_MODEL_HEADERS, flags, tools, log)


def precompiled_headers(names: Sequence[str], flags: Sequence[str], tools: Toolchain,
                        log: pathlib.Path) -> tuple[str, ...]:
    """Compiler arguments that make a unit use precompiled headers.

    The headers are precompiled at most once. For Clang there are no arguments: it rejects
    precompiled headers that were renamed, and the cache renames each complete entry.

    Parameters
    ----------
    names : sequence of str
        Headers, as in ``#include <name>``; those that the machine lacks are left out.
    flags : sequence of str
        All arguments of the unit except the folders of Verilator's headers.
    tools : Toolchain
        The compiler.
    log : pathlib.Path
        The compiler's output is appended to this file.

    Raises
    ------
    RuntimeError
        If the compiler rejects the headers.
    """
    if tools.is_clang:
        return ()

    text = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names)

    def make(folder: pathlib.Path) -> None:
        folder.mkdir()
        header = folder / _PRECOMPILED
        header.write_text(text)
        run_tool([*tools.cxx, *flags, *tools.include_flags, "-x", "c++-header", str(header),
                  "-o", f"{header}.gch"], folder, tools.environment(), log)

    key = digest([text, list(flags), recipe_text(), tools.identity()])
    return "-include", str(keep("objects", "headers", key, make) / _PRECOMPILED)


def compile_units(units: Sequence[tuple[pathlib.Path, pathlib.Path, Sequence[str]]],
                  tools: Toolchain, log: pathlib.Path) -> None:
    """Compiles C++ files to objects.

    Parameters
    ----------
    units : sequence of (pathlib.Path, pathlib.Path, sequence of str)
        Source file, object file and the compiler's other arguments of each unit.
    tools : Toolchain
        The compiler.
    log : pathlib.Path
        The compiler's output is appended to this file.

    Raises
    ------
    RuntimeError
        If the compiler rejects a unit.
    """
    def compile_one(unit: tuple[pathlib.Path, pathlib.Path, Sequence[str]]) -> None:
        source, target, flags = unit
        run_tool([*tools.cxx, *flags, "-c", str(source), "-o", str(target)], source.parent,
                 tools.environment(), log)

    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(compile_one, units))


def run_tool(command: Sequence[str], cwd: pathlib.Path, environment: Mapping[str, str],
             log: pathlib.Path, name: str | None = None) -> None:
    """Runs a tool and appends its output to ``log``.

    Parameters
    ----------
    command : sequence of str
        The tool and its arguments.
    cwd : pathlib.Path
        Folder in which it runs.
    environment : mapping of str to str
        All of its environment variables.
    log : pathlib.Path
        File for its output.
    name : str, optional
        The tool's name in the error message; by default, that of the command's file.

    Raises
    ------
    RuntimeError
        If the tool fails; the message has the last lines of its output.
    """
    done = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}")
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise RuntimeError(f"{name or pathlib.Path(command[0]).name} failed ({done.returncode}); "
                           f"the whole output is in {log}\n{tail}")
