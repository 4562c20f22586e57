"""Matrix products one after the other, as one program for each core of a chip."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hdl.config import Config
from sim.asm.assembler import Assembler, Program
from sim.compiler.matmul import Matmul, Places
from sim.compiler.matmul_code import LAYER, Writer

__all__ = ["Chain"]


@dataclass(frozen=True)
class Chain:
    """Products one after the other: the C of each is the A of the next. One program for each core.

    Parameters
    ----------
    jobs : tuple of Matmul
        One or more. All but the last leave zeros as padding, and all have panels of as many rows;
        `link` makes them so.

    Raises
    ------
    TypeError, ValueError
        If there is none, or one does not fit the one before; if the programs may not fit
        instruction memory.
    """

    jobs: tuple[Matmul, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, tuple) or not all(isinstance(j, Matmul) for j in self.jobs):
            raise TypeError(f"jobs must be a tuple of Matmul, not {self.jobs!r}")
        if not self.jobs:
            raise ValueError("jobs must be one or more, not ()")
        for number, (job, after) in enumerate(zip(self.jobs, self.jobs[1:], strict=False)):
            if (job.config, job.c_shape, job.columns) != (after.config, after.a_shape, after.depth):
                raise ValueError(f"jobs[{number + 1}] must take what jobs[{number}] makes, but is "
                                 f"{after!r} behind {job!r}")
            if job.columns % self.config.array and not job.zero_pads:
                raise ValueError(f"jobs[{number}] must have zero_pads: {job.columns} columns are "
                                 f"no multiple of {self.config.array}")
        needed = sum(job.most_bundles for job in self.jobs)
        if needed > self.config.imem_bundles:
            raise ValueError(f"jobs must fit {self.config.imem_bundles} bundles, not "
                             f"{len(self.jobs)} of up to {needed} together")

    @classmethod
    def link(cls, *jobs: Matmul) -> "Chain":
        """A chain of products whose sizes fit, with zeros and rows as it needs them."""
        rows = max((job.padded_rows for job in jobs), default=0)
        # Whatever has an epilogue may be cut in another way than before.
        linked = [replace(job, zero_pads=job.zero_pads or bool(job.columns % job.config.array))
                  for job in jobs[:-1]] + list(jobs[-1:])
        rows = max((job.padded_rows for job in linked), default=0)
        if len(linked) > 1:
            linked = [replace(job, panel_rows=rows) for job in linked]
        return cls(tuple(linked))

    @property
    def config(self) -> Config:
        """The chip."""
        return self.jobs[0].config

    @property
    def array_rows(self) -> int:
        """Rows that enter all arrays: at least so many cycles, of all cores together."""
        return sum(job.array_rows for job in self.jobs)

    def programs(self, places: Sequence[Places]) -> dict[int, Program]:
        """The cores' programs, by core; without cores that have nothing to do.

        Where another core has a part of a layer, the next one begins when both are done. For that
        semaphore 2 of each core must be 0 at first, and is 0 afterwards; others may be anything.

        Parameters
        ----------
        places : sequence of Places
            Of each product.

        Raises
        ------
        ValueError
            If there are more or fewer than products, an address is no multiple, or a matrix does
            not lie in HBM.
        """
        if len(places) != len(self.jobs):
            raise ValueError(f"places must be {len(self.jobs)}, not {len(places)}")
        for job, place in zip(self.jobs, places, strict=True):
            _check_places(job, place)
        cores = sorted({share.core for job in self.jobs for share in job.shares})
        return {core: self._program(core, places, together=len(cores) > 1) for core in cores}

    def _program(self, core: int, places: Sequence[Places], *, together: bool) -> Program:
        asm = Assembler(self.config)
        for number, (job, place) in enumerate(zip(self.jobs, places, strict=True)):
            share = next((share for share in job.shares if share.core == core), None)
            if share is not None:
                Writer(job, share, place, asm, f"layer{number}_" if number else "").write()
            if together and number + 1 < len(self.jobs):
                with asm.bundle() as bundle:
                    bundle.misc.signal_other(LAYER, 1)
                with asm.bundle() as bundle:
                    bundle.misc.wait(LAYER, 1)
        with asm.bundle() as bundle:
            bundle.s1.halt()
        return asm.assemble()


def _check_places(job: Matmul, places: Places) -> None:
    row_bytes = job.config.row_bytes
    for name, shape in (("a", job.a_shape), ("b", job.b_shape), ("c", job.c_shape),
                        ("tail", job.tail_shape)):
        address, rows = getattr(places, name), shape[0] * shape[1]
        if address % row_bytes:
            raise ValueError(f"{name} must be a multiple of a row's {row_bytes} bytes, "
                             f"not {address!r}")
        if not 0 <= address <= job.config.hbm_bytes - rows * row_bytes:
            raise ValueError(f"{name} must lie within {job.config.hbm_bytes} bytes of HBM, "
                             f"not {rows * row_bytes} bytes from {address!r} on")
