"""Builds the designs of the benches with Verilator, once, and runs the benches on them."""

import contextlib
import fcntl
import inspect
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from unittest import mock
from xml.etree import ElementTree

import cocotb_tools.config
from amaranth.lib import wiring
from cocotb_tools.runner import get_runner

from hdl.chip.chip import Chip
from hdl.config import Config
from hdl.core.core import Core
from hdl.core.sequencer import Sequencer
from hdl.lint import LINT_WAIVERS
from hdl.mxu.cell import MacCell
from hdl.mxu.mxu import Mxu
from hdl.store import digest, keep
from hdl.tiles import VerilogLibrary
from hdl.vpu.vpu import Vpu
from hdl.xlu.xlu import Xlu
from sim.models.core import core_sources
from sim.verilated.cache import cached_json
from sim.verilated.classes import MACROS, Classes, joined_file, verilate
from sim.verilated.objects import (
    compile_units,
    precompiled_headers,
    recipe_text,
    run_tool,
    runtime_objects,
)
from sim.verilated.toolchain import (
    CLASS_STANDARD,
    SIZE_FLAGS,
    SPLIT_FLAGS,
    Toolchain,
    build_folder,
)
from verif.benches.axi.tops import ControlTop, HbmPortTop
from verif.benches.fpga.tops import SdramTop, SerialTop

__all__ = ["BENCHES", "SEED", "Bench", "Design", "build", "check", "design", "run"]

SEED = 20240817
"""Default seed of a run."""

_DESIGNS: dict[str, dict[str, Callable[[Config], wiring.Component]]] = {
    "axi": {"hbm_port": HbmPortTop},
    "chip": {"control": ControlTop, "chip": Chip},
    "core": {"sequencer": Sequencer, "core": Core},
    "fpga": {"serial": SerialTop, "sdram": SdramTop},
    "mxu": {"mac_cell": MacCell, "mxu": Mxu},
    "vpu": {"vpu": Vpu},
    "xlu": {"xlu": Xlu},
}
"""The designs under test: by folder of benches, the top modules, each with ``bench_{top}.py``."""
_TOPS = {top: make for tops in _DESIGNS.values() for top, make in tops.items()}
_MODULES = {top: f"verif.benches.{folder}.bench_{top}"
            for folder, tops in _DESIGNS.items() for top in tops}

# The random initial contents of a design's memories follow from the run's seed.
_VERILATOR_FLAGS = ("--vpi", "--timescale", "1ns/1ns", *SIZE_FLAGS, *SPLIT_FLAGS, "--x-assign",
                    "unique", "--x-initial", "unique", "--no-timing")

_CXX_FLAGS = (CLASS_STANDARD, "-pthread")
_COCOTB_MAIN = cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp"
_HEADERS = ("libgen.h", "algorithm", "atomic", "cstring", "memory", "string", "vector",
            "verilated.h", "verilated_dpi.h", "verilated_vpi.h")
"""Headers that the C++ files of every design include."""

_SIGNALS = "verilated_vpi.cpp"
"""The part of Verilator's run-time library through which cocotb reads and writes signals.

It takes a large part of each bench's time; the other parts take hardly any."""

_LONG = ("chip", "core")
"""Designs whose benches simulate so many cycles that a faster model pays off. The other benches are
short: a faster model would not make up for the time that its build takes."""

_BLOCKS = ("vpu_grid_row", "mac_grid_row")
"""Large modules with many instances in a design: each is verilated and compiled only once.

Rows of tiles, not tiles: a design with fewer blocks is simulated faster."""

_WARNINGS = ",".join(["error", *(
    f"ignore::DeprecationWarning:cocotbext.axi.{module}"
    for module in ("axi_master", "axi_slave", "axil_master", "axil_slave", "reset", "stream"))])
"""Warnings are errors, except in a package that still uses names of cocotb 1."""

_TAIL_LINES = 40


@dataclass(frozen=True)
class Bench:
    """A design in one configuration; `check` runs the tests in the design's ``bench_{top}.py``.

    Attributes
    ----------
    top : str
        Name of the design's module, one of those in `BENCHES`.
    preset : str
        Name of the configuration.
    mac_latency : int
        Pipeline depth of the cell.
    """

    top: str
    preset: str
    mac_latency: int

    def __str__(self) -> str:
        return f"{self.top}-{self.preset}-{self.mac_latency}"


BENCHES = (Bench("mac_cell", "tiny", 1), Bench("mac_cell", "tiny", 2), Bench("mac_cell", "tiny", 4),
           Bench("mxu", "tiny", 4), Bench("mxu", "small", 2),
           *(Bench(top, preset, 2) for top in ("sequencer", "xlu", "vpu")
             for preset in ("tiny", "small")),
           Bench("serial", "fpga", 2), Bench("sdram", "fpga", 2),
           Bench("core", "tiny", 4), Bench("core", "small", 2),
           *(Bench(top, preset, 2) for top in ("hbm_port", "control")
             for preset in ("tiny", "small")),
           Bench("chip", "tiny", 2), Bench("chip", "small", 2))
"""All benches, small designs first. Most have cells of depth 2: with depth 4 an array is slow,
because weights must wait for the wavefront of a swap."""


@dataclass(frozen=True)
class Design:
    """A design as Verilog.

    Attributes
    ----------
    sources : dict of str to str
        Verilog by module name.
    ports : list of str
        Names of the top module's ports.
    """

    sources: dict[str, str]
    ports: list[str]


def design(bench: Bench) -> Design:
    """Return the Verilog of a bench's design."""
    config = Config.preset(bench.preset, mac_latency=bench.mac_latency)

    def write() -> dict[str, object]:
        library = VerilogLibrary()
        core = core_sources(config, kernels=False)["verilog"] if bench.top == "chip" else {}
        sources = core | library.write(bench.top, lambda: _TOPS[bench.top](config),
                                       leave_out=["core"] if core else [])
        top = library.modules[bench.top]
        return {"sources": sources, "ports": [*top.inputs, *top.outputs]}

    parameters = [bench.top, bench.preset, bench.mac_latency, inspect.getsource(design)]
    return Design(**cached_json("bench", parameters, write, code=_TOPS[bench.top]))


def build(bench: Bench, verilog: Design, *, waves: bool = False) -> pathlib.Path:
    """Builds a design's simulator, unless one with equal inputs exists; returns its folder.

    Raises
    ------
    RuntimeError
        If a tool is missing or fails; with the last lines of the build's output.
    """
    tools = Toolchain.find()
    optimise = False if bench.top in _LONG else None
    recipe = [tools.identity(), tools.class_optimisation(optimise), _VERILATOR_FLAGS, _CXX_FLAGS,
              _HEADERS, waves, version("cocotb"), sys.version_info[:2], _BLOCKS, LINT_WAIVERS,
              recipe_text(), *(inspect.getsource(part) for part in (build, _build, _verilate))]
    return keep("cocotb", str(bench), digest([*recipe, vars(verilog)]),
                lambda folder: _build(folder, tools, bench, verilog, optimise, waves))


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Waits until no other process holds the lock of a run's folder, and holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: pathlib.Path, tools: Toolchain, bench: Bench, verilog: Design,
           optimise: bool | None, waves: bool) -> None:
    """Builds a simulator in the new ``folder``: Verilator's C++, and cocotb's main program."""
    folder.mkdir()
    obj, log = folder / "obj", folder / "build.log"
    blocks = [name for name in _BLOCKS if name in verilog.sources and name != bench.top]
    try:
        _verilate(folder, tools, bench, verilog, blocks, waves)
        traced = int(waves)
        defines = [*MACROS, f"-DVM_TRACE={traced}", f"-DVM_TRACE_VCD={traced}"]
        flags = {part: [*_CXX_FLAGS, *defines, *tools.class_optimisation(level)]
                 for part, level in (("fast", optimise), ("slow", None))}
        headers = {part: precompiled_headers(_HEADERS, flags[part], tools, log) for part in flags}
        top = Classes(obj, "Vtop", optimise)
        units = [(joined_file(obj / f"{part}.cpp", names), obj / f"{part}.o",
                  [*flags[part], *headers[part], *tools.include_flags, f"-I{obj}"])
                 for part, names in top.parts([str(_COCOTB_MAIN)]).items()]
        compile_units(units, tools, log)
        objects = [target for _, target, _ in units]
        for name in blocks:
            block = Classes(obj / f"V{name}", f"V{name}", optimise)
            objects += [block.compile(part, names, flags[part], headers[part], tools, log)
                        for part, names in block.parts([f"{name}.cpp"]).items()]
        runtime = top.listed("GLOBAL_FAST", "GLOBAL_SLOW")
        for level, chosen in (("-O2", [name for name in runtime if name == _SIGNALS]),
                              ("-Og", [name for name in runtime if name != _SIGNALS])):
            objects += runtime_objects(chosen, [*_CXX_FLAGS, *defines, level], tools, log)
        libraries = cocotb_tools.config.libs_dir
        run_tool([*tools.cxx, "-pthread", "-o", bench.top, *map(str, objects),
                  f"-Wl,-rpath,{libraries}", f"-L{libraries}", "-lcocotbvpi_verilator"],
                 folder, tools.environment(), log)
    except RuntimeError as error:
        raise RuntimeError(f"{bench} was not built: {error}") from error
    shutil.rmtree(obj)


def _verilate(folder: pathlib.Path, tools: Toolchain, bench: Bench, verilog: Design,
              blocks: Sequence[str], waves: bool) -> None:
    """Translates a design to C++ in ``folder / "obj"``.

    File names in the C++ are relative, so that a block's C++ is the same in each design.
    """
    # All other signals are optimised.
    control = [f'public_flat_rw -module "{bench.top}" -var "{port}"' for port in verilog.ports]
    control += [f'hier_block -module "{name}"' for name in blocks]
    if blocks:
        # From outside, each output of a block seems to depend on each of its inputs.
        control.append("lint_off -rule UNOPTFLAT")
    (folder / "bench.vlt").write_text("\n".join(
        ["`verilator_config", LINT_WAIVERS, *control, ""]))
    for name, text in verilog.sources.items():
        (folder / f"{name}.v").write_text(text)
    verilate(folder, bench.top, "Vtop", blocks,
             [*_VERILATOR_FLAGS, *(["--trace-vcd"] if waves else [])],
             ["bench.vlt", *(f"{name}.v" for name in verilog.sources)], tools)


def _environment(tools: Toolchain, changes: Mapping[str, str]) -> contextlib.AbstractContextManager:
    """Gives this process the tools' environment, without settings that would change cocotb's runs.

    Cocotb's runner prefers this process's environment to one that is passed to it, and behaves
    differently if the variables say that pytest is running.
    """
    kept = {name: value for name, value in tools.environment().items()
            if not name.startswith("COCOTB_") and name not in (
                "WAVES", "GUI", "PYTEST_CURRENT_TEST", "SIM_CMD_PREFIX", "SIM_CMD_SUFFIX")}
    return mock.patch.dict("os.environ", {**kept, **changes}, clear=True)


def _tail(log: pathlib.Path) -> str:
    text = log.read_text(errors="replace") if log.is_file() else ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def check(bench: Bench, folder: pathlib.Path, *, seed: int = SEED,
          waves: bool = False) -> list[str]:
    """Runs a bench's tests on a simulator, in a folder ``cocotb/BENCH`` that keeps its log.

    Parameters
    ----------
    bench : Bench
        The bench to run.
    folder : pathlib.Path
        The folder of the simulator, which `build` made with the same ``waves``.
    seed : int
        Seed of all random numbers.
    waves : bool
        Write waveforms to ``dump.vcd`` in the run's folder.

    Returns
    -------
    list of str
        Names of the tests that ran, at least one; all of them passed.

    Raises
    ------
    RuntimeError
        If a test failed or none ran. The message names the bench, its seed and the tests.
    """
    # Names of entries of the cache end with a digest; none of them is called like a bench.
    here = build_folder() / "cocotb" / str(bench)
    log, results = here / "run.log", here / "results.xml"
    with _locked(here), _environment(Toolchain.find(), {
            "COCOTB_RANDOM_SEED": str(seed), "PYTHONWARNINGS": _WARNINGS,
            # Only these files' assertions show values: to rewrite those of every package that is
            # imported, and to load pytest's plugins for it, takes a second.
            "COCOTB_REWRITE_ASSERTION_FILES": "verif/*.py", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # The simulator may have been built by another checkout, for its own cocotb.
            "LD_LIBRARY_PATH": str(cocotb_tools.config.libs_dir)}):
        try:
            get_runner("verilator").test(
                test_module=_MODULES[bench.top], hdl_toplevel=bench.top,
                hdl_toplevel_lang="verilog", build_dir=folder, test_dir=here,
                results_xml=str(results),
                log_file=log, waves=waves,
                plusargs=[f"+preset={bench.preset}", f"+mac_latency={bench.mac_latency}",
                          "+verilator+rand+reset+2", f"+verilator+seed+{seed % (1 << 31) or 1}"])
            problem = None
        except (RuntimeError, SystemExit) as error:
            problem = f"the simulator failed: {error}"
        names, failures = _read_results(results)
    if problem is None and not names:
        problem = "no test ran"
    if failures:
        problem = f"{len(failures)} of {len(names)} tests failed\n" + "\n".join(
            f"  {name}: {message}" for name, message in failures.items())
    if problem is not None:
        raise RuntimeError(f"bench {bench}, seed {seed}: {problem}\nThe log is {log}; it ends:\n"
                           f"{_tail(log)}")
    return names


def _read_results(results: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """Names of the tests that ran, and the messages of those that failed."""
    if not results.is_file():
        return [], {}
    names, failures = [], {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        name = case.get("name", "")
        names.append(name)
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                failures[name] = found.get("message") or found.get("type") or kind
    return names, failures


def run(bench: Bench, *, seed: int = SEED, waves: bool = False) -> list[str]:
    """Builds a bench's simulator, unless it exists, and runs the tests as `check` does."""
    return check(bench, build(bench, design(bench), waves=waves), seed=seed, waves=waves)
