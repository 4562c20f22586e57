"""How Verilator's C++ is made, and which of its files are compiled together."""

import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hdl.store import digest, keep
from sim.verilated.objects import compile_units, recipe_text, run_tool
from sim.verilated.toolchain import Toolchain

__all__ = ["MACROS", "Classes", "joined_file", "verilate"]

MACROS = ("-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0", "-DVM_TRACE_FST=0",
           "-DVM_TRACE_SAIF=0")
"""Settings of Verilator's headers; its run-time library depends on no other settings."""

_LIST = r"^VM_{} \+= \\\n((?: +.*\\\n)*)"


def verilate(folder: pathlib.Path, top: str, prefix: str, blocks: Sequence[str],
             flags: Sequence[str], files: Sequence[str], tools: Toolchain, *,
             top_flags: Sequence[str] = ()) -> None:
    """Translates Verilog to C++: the top module into ``obj``, a block ``name`` into ``obj/Vname``.

    This runs what Verilator runs for its option ``--hierarchical``, except the first step: to find
    the blocks, it would link all instances of the whole design. For a full-size array, that takes
    as long as the rest, and more memory.

    Parameters
    ----------
    folder : pathlib.Path
        Folder in which Verilator runs; its output is appended to ``build.log`` there.
    top, prefix : str
        Top module, and prefix of the names of its C++ classes and files.
    blocks : sequence of str
        Modules that become classes of their own; one that contains another comes after it. A file
        of ``files`` must mark each as ``hier_block``.
    flags : sequence of str
        Arguments of Verilator for the blocks and the top module.
    files : sequence of str
        Names of the control files and Verilog files in ``folder``.
    tools : Toolchain
        Verilator.
    top_flags : sequence of str
        Arguments for the top module only.

    Raises
    ------
    RuntimeError
        If Verilator rejects a file.
    """
    (folder / "obj").mkdir()

    def run(module: str, prefix: str, place: str, *more: str) -> None:
        run_tool([*tools.verilator, "--cc", *flags, "--prefix", prefix, "--top-module", module,
                  "--Mdir", place, *more, *files],
                 folder, tools.environment(), folder / "build.log", "Verilator")

    made: list[str] = []
    for name in blocks:
        block = ["--hierarchical-block", f"{name},{name}"]
        run(name, f"V{name}", f"obj/V{name}", "--lib-create", name, "--hierarchical-child", "1",
            *block, *made)
        made += [*block, f"obj/V{name}/{name}.sv"]
    run(top, prefix, "obj", *top_flags, *made)


@dataclass(frozen=True)
class Classes:
    """The C++ that Verilator has written for the top module or for a hierarchical block.

    Attributes
    ----------
    folder : pathlib.Path
        Folder of the C++ files.
    prefix : str
        Common beginning of the files' names.
    optimise : bool or None
        As in `sim.verilated.build.build_model`.
    """

    folder: pathlib.Path
    prefix: str
    optimise: bool | None

    def listed(self, *variables: str) -> list[str]:
        """The C++ files that are listed in these ``variables`` of Verilator's makefile."""
        makefile = (self.folder / f"{self.prefix}_classes.mk").read_text()
        blocks = [block for variable in variables
                  for block in re.findall(_LIST.format(variable), makefile, re.MULTILINE)]
        return [f"{name}.cpp" for block in blocks for name in block.replace("\\", " ").split()]

    def parts(self, more: Sequence[str]) -> dict[str, list[str]]:
        """Names of the C++ files to compile together, by part of the block: ``fast`` or ``slow``.

        The files ``more`` are in part ``fast``. If `optimise` is None, all files are in this part.
        """
        fast = [*self.listed("CLASSES_FAST", "SUPPORT_FAST"), *more]
        slow = self.listed("CLASSES_SLOW", "SUPPORT_SLOW")
        if self.optimise is None:
            # Neither part is optimised, so they can share the reading of the model's headers.
            return {"fast": [*slow, *fast]}
        return {"fast": fast, "slow": slow}

    def compile(self, part: str, names: Sequence[str], flags: Sequence[str],
                headers: Sequence[str], tools: Toolchain, log: pathlib.Path) -> pathlib.Path:
        """Return the object file of a block's C++ files ``names``; equal C++ is compiled once.

        The names of a block's files, classes and functions depend on the block alone, so all models
        with the block can share the object. ``part``, such as ``fast``, is added to the name of the
        object. ``flags`` and ``headers`` are arguments of the compiler; only ``flags`` change the
        object.
        """
        texts = {path.name: path.read_text() for path in sorted(self.folder.iterdir())
                 if path.suffix in (".cpp", ".h")}
        include = (*tools.include_flags, f"-I{self.folder}")
        key = digest([texts, list(names), list(flags), recipe_text(), tools.identity()])
        return keep("objects", f"{self.prefix}-{part}.o", key, lambda target: compile_units(
            [(joined_file(log.with_name(f"{self.prefix}-{part}.cpp"), names), target,
              [*flags, *headers, *include])], tools, log))


def joined_file(path: pathlib.Path, units: Sequence[str]) -> pathlib.Path:
    """Writes the C++ file ``path``, which includes all ``units``; returns ``path``.

    Reading Verilator's headers takes longer than compiling a small unit; one joined file reads
    them once.
    """
    path.write_text("".join(f'#include "{unit}"\n' for unit in units))
    return path
