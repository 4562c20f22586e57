"""The vector unit as a verilated model, under a `VpuChecker`."""

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from hdl.config import Config
from hdl.isa import TRANSCENDENTAL_LATENCY, Slot
from hdl.lint import LINT_WAIVERS
from hdl.vpu.element import vpu_grid
from hdl.vpu.interface import HostSpace
from hdl.vpu.vpu import Vpu
from sim.models.kernels import BLOCK_WAIVERS, with_kernels
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model
from verif.models.vpu import BundleIssuer, Cycle, VpuChecker, input_widths, pins

__all__ = ["VerilatedVpu", "vpu_library"]


def inputs_of(config: Config, cycles: Sequence[Cycle]) -> dict[str, np.ndarray]:
    """The ports' values, a row for each cycle. Inputs without a meaning are random."""
    rng = np.random.default_rng(len(cycles))
    count = len(cycles)
    inputs = {
        f"{port}__{member}": np.zeros(count, np.uint32) if member in ("valid", "load", "shift")
        else rng.integers(0, 1 << width, count, dtype=np.uint32)
        for port, members in input_widths(config).items() for member, width in members.items()}
    inputs |= {
        f"{name}_chain__row": rng.integers(0, 1 << 32, (count, config.lanes), dtype=np.uint32)
        for name in ("pop", "result")}
    for t, cycle in enumerate(cycles):
        for name, value in pins(cycle).items():
            inputs[name][t] = value
    return inputs


def vpu_library(config: Config, *, kernels: bool) -> pathlib.Path:
    """Builds the unit's model with a kernel for its grid, or in pure Verilog; returns its path."""
    grid = vpu_grid(config)
    sources = cached_json("vpu", [asdict(config), kernels], lambda: with_kernels(
        "vpu", partial(Vpu, config), [grid] if kernels else []))
    return build_model("vpu", sources["verilog"], cpp=sources["cpp"], optimise=None,
                       hierarchical=[] if kernels else [grid.tile_module],
                       waivers=LINT_WAIVERS + ("" if kernels else BLOCK_WAIVERS))


class VerilatedVpu:
    """Drives a model's pins, and compares the outputs with the checker's in every cycle.

    Attributes
    ----------
    checker : VpuChecker
    """

    def __init__(self, config: Config, model: Model) -> None:
        self.config = config
        self.model = model
        model.reset()
        self.checker = VpuChecker(config)

    def run(self, cycles: Sequence[Cycle], *, drain: bool = True) -> None:
        """Runs cycles on model and checker, and empty ones until no operation is in progress.

        Raises
        ------
        AssertionError
            If an output differs in any cycle.
        """
        cycles = [*cycles, *[Cycle()] * (TRANSCENDENTAL_LATENCY + 1 if drain else 0)]
        want = [self.checker.step(cycle) for cycle in cycles]
        names = sorted({name for outputs in want for name in outputs})
        inputs = inputs_of(self.config, cycles)
        got = self.model.run(inputs, names)
        for name in inputs:
            if name.endswith(("valid", "load", "shift")):
                self.model.poke(name, 0)
        for t, outputs in enumerate(want):
            self.checker.compare(outputs, lambda name, t=t: got[name][t], t)  # type: ignore[misc]

    def issue(self, issuer: BundleIssuer, limit: int = 20_000) -> None:
        """Runs until all bundles of an issuer have issued and written their results.

        Raises
        ------
        AssertionError
            If an output differs in any cycle, or bundles are left after ``limit`` cycles.
        """
        peek = self.model.peek
        for _ in range(limit):
            if issuer.idle:
                return
            written = {(file, peek(f"{signal}__{port}__d"))
                       for file, signal, ports in (("v", "written", ("v0", "v1", "load")),
                                                   ("m", "mask_written", ("v0", "v1")))
                       for port in ports if peek(f"{signal}__{port}__valid")}
            urgent = {slot for slot, name in ((Slot.LOAD, "urgent_read"),
                                              (Slot.STORE, "urgent_write")) if peek(name)}
            self.run([issuer.next(written, urgent)], drain=False)
        raise AssertionError(f"{issuer.queued} bundles have not issued after {limit} cycles")

    def write(self, words: Mapping[int, np.ndarray]) -> None:
        """Writes vectors of vector memory through the host's port, while the core is idle."""
        rows = [(address, row) for address, word in words.items() for row in word]
        inputs = {
            "host_write__valid": np.ones(len(rows), np.uint32),
            "host_write__payload": np.array(
                [[address | int(row[0]) << 16 & 0xFFFF0000,
                  *(int(row[i]) >> 16 | (int(row[i + 1]) << 16 & 0xFFFF0000
                                         if i + 1 < len(row) else 0)
                    for i in range(len(row)))] for address, row in rows], np.uint32)}
        ready = self.model.run(inputs, ["host_write__ready"])["host_write__ready"]
        assert ready.all(), "a row of the host is not taken although the core is idle"
        self.model.poke("host_write__valid", 0)
        self.model.tick(2)
        assert not self.model.peek("host_busy"), "the host's rows were not written in 2 cycles"
        for address, word in words.items():
            self.checker.vmem[address] = word

    def read(self, space: HostSpace, address: int) -> np.ndarray:
        """Reads a vector row by row through the host's port."""
        self.model.poke("host_read__payload", int(space) | address << 2)
        self.model.poke("host_read__valid", 1)
        self.model.poke("host_rows__ready", 1)
        rows = []
        for _ in range(100):
            accepted = self.model.peek("host_read__ready")
            if self.model.peek("host_rows__valid"):
                rows.append(self.model.peek_words("host_rows__payload"))
            self.model.tick()
            if accepted:
                self.model.poke("host_read__valid", 0)
            if len(rows) == self.config.sublanes:
                return np.array(rows)
        raise AssertionError(f"{len(rows)} rows of {space.name} {address} came in 100 cycles")

    def check(self, addresses: Sequence[int]) -> None:
        """Compares all registers and masks, and some vectors of memory, with the checker's."""
        checker = self.checker
        for number, vector in enumerate(checker.vectors):
            self._compare(f"v{number}", self.read(HostSpace.VREG, number), vector)
        masks = self.read(HostSpace.MASK, 0)
        for number, mask in enumerate(checker.masks):
            self._compare(f"m{number}", masks >> number & 1, mask)
        self._compare("bits above the masks", masks >> len(checker.masks), np.zeros_like(masks))
        for address in addresses:
            self._compare(f"vmem[{address}]", self.read(HostSpace.VMEM, address),
                          checker.vmem[address])

    @staticmethod
    def _compare(what: str, got: np.ndarray, want: np.ndarray) -> None:
        wrong = np.argwhere(got != want)
        if len(wrong):
            sublane, lane = wrong[0]
            raise AssertionError(f"{what}: sublane {sublane}, lane {lane} is "
                                 f"{got[sublane, lane]:#x}, not {int(want[sublane, lane]):#x}; "
                                 f"{len(wrong)} elements differ")
