"""Linking: products one after the other, as one program for each core of a chip."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hdl.config import Config
from sim.asm.assembler import Assembler, Program
from sim.compiler.executable import BufferSpec, Executable, Role
from sim.compiler.handwritten import registers as r
from sim.compiler.handwritten.frame import Places
from sim.compiler.handwritten.matmul import Matmul
from sim.compiler.handwritten.writer import Writer
from sim.compiler.layout import NEGATIVE_ZERO

__all__ = ["LayerChain"]


@dataclass(frozen=True)
class LayerChain:
    """Products one after the other: the C of each is the A of the next.

    Parameters
    ----------
    jobs : tuple of Matmul
        One or more. All but the last fill the padding of C with zeros, and all have panels of
        equally many rows; `link` makes them so.

    Raises
    ------
    TypeError, ValueError
        If there is no product, or one does not fit the one before; if the programs may not fit in
        instruction memory.
    """

    jobs: tuple[Matmul, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, tuple) or not all(isinstance(j, Matmul) for j in self.jobs):
            raise TypeError(f"jobs must be a tuple of Matmul, not {self.jobs!r}")
        if not self.jobs:
            raise ValueError("jobs must have at least one job, not ()")
        for number, (job, after) in enumerate(zip(self.jobs, self.jobs[1:], strict=False)):
            if ((job.config, job.c_layout.panels, job.columns)
                    != (after.config, after.a_layout.panels, after.depth)):
                raise ValueError(f"jobs[{number + 1}] must take what jobs[{number}] makes, not be "
                                 f"{after!r} after {job!r}")
            if job.columns % self.config.array and not job.zero_pads:
                raise ValueError(f"jobs[{number}] must have zero_pads: {job.columns} columns are "
                                 f"no multiple of {self.config.array}")
        needed = sum(job.most_bundles for job in self.jobs)
        if needed > self.config.imem_bundles:
            raise ValueError(f"jobs must fit {self.config.imem_bundles} bundles, not "
                             f"{len(self.jobs)} of up to {needed} together")

    @classmethod
    def link(cls, *jobs: Matmul) -> "LayerChain":
        """Make a chain of products whose sizes fit, with the padding and panel rows it needs."""
        linked = [replace(job, zero_pads=job.zero_pads or bool(job.columns % job.config.array))
                  for job in jobs[:-1]] + list(jobs[-1:])
        if len(linked) > 1:
            # Zeroed padding is an epilogue, which may change the blocks: take the rows afterwards.
            rows = max(job.padded_rows for job in linked)
            linked = [replace(job, panel_rows=rows) for job in linked]
        return cls(tuple(linked))

    @property
    def config(self) -> Config:
        """The chip."""
        return self.jobs[0].config

    @property
    def executable(self) -> Executable:
        """The products for a device.

        Its inputs are A of the first product, ``x``, and for each product B, ``weights[n]``, and
        the bias, ``bias[n]``, if there is one. Its outputs are C of each product, ``result[n]``.

        Where both cores take part, semaphore 2 of each must be 0 before a run, and is 0 after it.
        Other state of the cores does not matter.
        """
        buffers = [BufferSpec("x", Role.INPUT, self.jobs[0].a_layout)]
        for number, job in enumerate(self.jobs):
            buffers.append(BufferSpec(f"weights[{number}]", Role.INPUT, job.b_layout))
            if job.bias:
                buffers.append(BufferSpec(f"bias[{number}]", Role.INPUT, job.tail_layout))
            elif job.has_epilogue:
                buffers.append(BufferSpec(f"bias[{number}]", Role.CONSTANT, job.tail_layout,
                                          np.full(job.columns, NEGATIVE_ZERO, np.float32)))
            buffers.append(BufferSpec(f"result[{number}]", Role.OUTPUT, job.c_layout))
        name = " and ".join(f"a product of ({job.rows}, {job.depth}) and ({job.depth}, "
                            f"{job.columns})" for job in self.jobs)
        return Executable(self.config, name, tuple(buffers), self._programs,
                          sum(job.array_rows for job in self.jobs))

    def _programs(self, addresses: Mapping[str, int]) -> dict[int, Program]:
        """Write the cores' programs, without those of cores that have nothing to do."""
        places, a = [], addresses["x"]
        for number in range(len(self.jobs)):
            c = addresses[f"result[{number}]"]
            places.append(Places(a, addresses[f"weights[{number}]"], c,
                                 addresses.get(f"bias[{number}]", 0)))
            a = c
        cores = sorted({share.core for job in self.jobs for share in job.shares})
        return {core: self._program(core, places, together=len(cores) > 1) for core in cores}

    def _program(self, core: int, places: list[Places], *, together: bool) -> Program:
        """Write a core's program; if ``together``, cores wait for each other between products."""
        asm = Assembler(self.config)
        for number, (job, place) in enumerate(zip(self.jobs, places, strict=True)):
            share = next((share for share in job.shares if share.core == core), None)
            if share is not None:
                Writer(job, share, place, asm, f"layer{number}_" if number else "").write()
            if together and number + 1 < len(self.jobs):
                with asm.bundle() as bundle:
                    bundle.misc.signal_other(r.LAYER, 1)
                with asm.bundle() as bundle:
                    bundle.misc.wait(r.LAYER, 1)
        with asm.bundle() as bundle:
            bundle.s1.halt()
        return asm.assemble()
