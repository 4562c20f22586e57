"""Runs kernels in lockstep with the plain Verilog of the same grids; compares all outputs."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.tiles import TileGrid, VerilogLibrary, port_widths
from sim.kernel import Kernel, compile_grid
from sim.kernel.netlist.reader import PASSES
from sim.verilated.build import build_model
from sim.verilated.model import Model

_CPU = pathlib.Path("/proc/cpuinfo")
HAS_AVX512 = _CPU.exists() and "avx512bw" in _CPU.read_text()
# Without AVX-512, the native backend is already this one.
SECOND = ("no_avx512",) if HAS_AVX512 else ()
BACKENDS = ("native", *SECOND, "portable32", "portable16")
PARALLEL = "parallel"
"""Name of the native vector backend if several threads may share the work of a kernel's step."""

WAIVERS = "".join(f"lint_off -rule {rule}\n" for rule in (
    "ASCRANGE", "BLKSEQ", "CMPCONST", "DECLFILENAME", "GENUNNAMED", "PROCASSINIT", "UNOPTFLAT",
    "UNSIGNED", "UNUSEDSIGNAL", "UNUSEDPARAM", "WIDTHEXPAND", "WIDTHTRUNC"))


class VerilogTile(wiring.Component):
    """A tile written in Verilog: ``body`` stands between the ports and ``endmodule``."""

    def __init__(self, module: str, inputs: Mapping[str, int], outputs: Mapping[str, int],
                 body: str) -> None:
        self.module = module
        self.body = body
        super().__init__({**{name: In(width) for name, width in inputs.items()},
                          **{name: Out(width) for name, width in outputs.items()}})

    def verilog(self) -> str:
        ports = ["input clk", "input rst"]
        ports += [f"input [{width - 1}:0] {name}" for name, width in port_widths(self, In).items()]
        ports += [f"output [{width - 1}:0] {name}"
                  for name, width in port_widths(self, Out).items()]
        return (f"module {self.module}(\n  " + ",\n  ".join(ports)
                + f"\n);\n{self.body}\nendmodule\n")

    def elaborate(self, platform: object) -> None:
        raise NotImplementedError


def tile_verilog(grid: TileGrid) -> str:
    """Verilog of a grid's tile and of the modules that it instantiates."""
    return "\n".join(VerilogLibrary().write(grid.tile_module, grid.make_tile).values())


def _renamed(kernel: Kernel, module: str) -> Kernel:
    """The same kernel for an equal grid whose module is called ``module``."""
    return replace(kernel, module=module, cpp=kernel.cpp.replace(kernel.module, module),
                   shim=kernel.shim.replace(kernel.module, module))


class Lockstep:
    """A model that contains each grid as plain Verilog and as kernels with the same inputs.

    Parameters
    ----------
    top : str
        Name of the model.
    grids : mapping of str to callable
        For each grid, by name: a function that makes the grid as a module of the given name.
    backends : sequence of str, or dict of str to sequence of str
        Vector backends, or `PARALLEL`. Each grid has a kernel for each of them. A dict gives the
        backends of each grid, by the grid's name.
    passes : str
        Yosys passes for the kernels.
    """

    def __init__(self, top: str, grids: Mapping[str, Callable[[str], TileGrid]],
                 backends: Sequence[str] | Mapping[str, Sequence[str]] = BACKENDS,
                 passes: str = PASSES) -> None:
        sources: dict[str, str] = {}
        cpp: dict[str, str] = {}
        ports = ["input clk", "input rst"]
        body: list[str] = []
        bad: list[str] = []
        seen: list[str] = []
        self.kernels: dict[str, Kernel] = {}
        self.names: list[str] = []
        self.inputs: dict[str, int] = {}
        for name, make in grids.items():
            chosen = backends[name] if isinstance(backends, Mapping) else backends
            reference = make(f"{name}_plain")
            library = VerilogLibrary()
            sources.update(library.write(reference.module, partial(make, reference.module)))
            text = tile_verilog(reference)
            inputs, outputs = port_widths(reference, In), port_widths(reference, Out)
            for port, width in inputs.items():
                self.inputs[f"{name}_{port}"] = width
                ports.append(f"input [{width - 1}:0] {name}_{port}")
            for module in (reference.module, *(f"{name}_{backend}" for backend in chosen)):
                wires = {port: f"{module}_{port}" for port in outputs}
                body += [f"  wire [{outputs[port] - 1}:0] {wire};" for port, wire in wires.items()]
                actual = [".clk(clk)", ".rst(rst)",
                          *(f".{port}({name}_{port})" for port in inputs),
                          *(f".{port}({wire})" for port, wire in wires.items())]
                body.append(f"  {module} u_{module}({', '.join(actual)});")
            seen += [f"|{reference.module}_{port}" for port in outputs]
            made: dict[bool, Kernel] = {}
            for backend in chosen:
                parallel, module = backend == PARALLEL, f"{name}_{backend}"
                if parallel not in made:
                    made[parallel] = compile_grid(make(module), text, passes=passes,
                                                  parallel=parallel)
                kernel = self.kernels[module] = _renamed(made[parallel], module)
                sources[f"{name}_{backend}.sv"] = kernel.shim
                files = kernel.sources
                header = files["vec.hpp"]
                if backend == "no_avx512":
                    header = f"#define SYSTOLITH_NO_AVX512\n{header}"
                elif backend.startswith("portable"):
                    size = backend.removeprefix("portable")
                    header = f"#define SYSTOLITH_PORTABLE_VECTORS {size}\n{header}"
                cpp[f"vec_{backend}.hpp"] = header
                cpp[f"{name}_{backend}.cpp"] = kernel.cpp.replace("vec.hpp", f"vec_{backend}.hpp")
                for port in outputs:
                    bad.append(f"{reference.module}_{port} != {name}_{backend}_{port}")
                    self.names.append(f"{name}.{port} {backend}")
        self.outputs = len(seen)
        body += [f"  assign bad[{index}] = {text};" for index, text in enumerate(bad)]
        body += [f"  assign seen[{index}] = {text};" for index, text in enumerate(seen)]
        ports += [f"output [{len(bad) - 1}:0] bad", f"output [{len(seen) - 1}:0] seen"]
        sources[top] = (f"module {top}(\n  " + ",\n  ".join(ports) + ");\n" + "\n".join(body)
                        + "\nendmodule\n")
        self.path = build_model(top, sources, cpp=cpp, waivers=WAIVERS, optimise=None)

    def run(self, model: Model, inputs: Mapping[str, np.ndarray], cycles: int) -> np.ndarray:
        """Runs cycles with the given inputs; returns which outputs were nonzero in any cycle.

        An input is an array with a row of words for each cycle.

        Raises
        ------
        AssertionError
            If an output of a kernel differs from the plain Verilog's.
        """
        result = model.run(dict(inputs), ["bad", "seen"], cycles=cycles)
        wrong = np.argwhere(_bits(result["bad"], len(self.names)))
        if len(wrong):
            cycle = wrong[0][0]
            ports = [self.names[index] for index in dict.fromkeys(wrong[:, 1].tolist())]
            raise AssertionError(f"first in cycle {cycle}; outputs that differ: {ports[:40]} "
                                 f"({len(ports)} of {len(self.names)})")
        return np.asarray(_bits(result["seen"], self.outputs).any(axis=0))


def _bits(words: np.ndarray, count: int) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :count]


def random_words(rng: np.random.Generator, width: int, cycles: int) -> np.ndarray:
    """Random values of a port: a row of words for each cycle."""
    words = rng.integers(0, 1 << 32, (cycles, -(-width // 32)), dtype=np.uint32)
    if width % 32:
        words[:, -1] &= np.uint32((1 << width % 32) - 1)
    return words


def packed(values: np.ndarray, width: int) -> np.ndarray:
    """Packs elements of ``width`` bits, shape (cycles, elements), into a row of words a cycle."""
    cycles, count = values.shape
    bits = (values[:, :, np.newaxis].astype(np.uint64) >> np.arange(width, dtype=np.uint64)) & 1
    flat = bits.astype(np.uint8).reshape(cycles, count * width)
    spare = -flat.shape[1] % 32
    return np.packbits(np.pad(flat, ((0, 0), (0, spare))), axis=1,
                       bitorder="little").view(np.uint32)


def sparse(rng: np.random.Generator, width: int, cycles: int, density: float) -> np.ndarray:
    """Random values of a port of which each bit is set with probability ``density``."""
    return packed((rng.random((cycles, width)) < density).astype(np.uint64), 1)


__all__ = ["BACKENDS", "HAS_AVX512", "PARALLEL", "SECOND", "Lockstep", "VerilogTile", "packed",
           "random_words", "sparse", "tile_verilog"]
