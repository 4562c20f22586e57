"""Parameters of the processor: one frozen dataclass, checked on construction, and named presets.

Every width, depth and skew that two modules must agree on is a property here and nowhere else.
"""

from dataclasses import dataclass, fields, replace

from amaranth.utils import ceil_log2

from .checks import integer

__all__ = ["PRESETS", "Config"]

_BOUNDS = {
    "array": (2, 256),
    "sublanes": (1, 8),
    "cores": (1, 2),
    "mac_latency": (1, 6),
    "issue_cycles": (1, 3),
    "vmem_bytes": (1, 1 << 30),
    "smem_words": (2, 1 << 16),
    "imem_bundles": (2, 1 << 16),
    "hbm_bytes": (1 << 12, 1 << 40),
    "hbm_channels": (1, 32),
    "link_bytes": (0, 512),
}
"""Least and greatest value of each parameter."""


@dataclass(frozen=True)
class Config:
    """Parameters of one chip.

    Parameters
    ----------
    array : int
        Rows and columns of the systolic array, 2 to 256; also the number of vector lanes.
    sublanes : int
        Elements of a vector register in each lane, 1 to 8; must divide ``array``.
    cores : int
        Tensor cores of the chip, 1 or 2.
    vmem_bytes : int
        Vector memory of a core, in bytes; a multiple of the bytes of a vector.
    smem_words : int
        Scalar memory of a core, in words of 32 bits, 2 to 65536.
    imem_bundles : int
        Instruction memory of a core, in bundles, 2 to 65536.
    hbm_bytes : int
        Memory that all cores share, in bytes; a power of two from 4096 to 2**40.
    hbm_channels : int
        Memory channels of a core, each of which holds an equal part of every row; a power of two
        from 1 to 32. Only `Chip` checks ``channel_bytes``, because a core without a chip has no
        channels.
    mac_latency : int
        Pipeline depth of the multiply-accumulate cell, 1 to 6 cycles. It affects clock frequency
        and latency, never a result.
    issue_cycles : int
        Least number of cycles from the issue of a bundle to that of the next, 1 or 3. With 3, a
        bundle is decoded, examined and issued in different cycles, which shortens the critical
        path. It affects clock frequency and cycles, never a result.
    link_bytes : int
        Bytes of data in a flit of the chip's four links (docs/links.md): a power of two from 4 to
        512 that divides ``row_bytes``, or 0 for a chip without links.

    Raises
    ------
    TypeError, ValueError
        If a parameter is of the wrong type or out of range.
    """

    array: int = 128
    sublanes: int = 8
    cores: int = 2
    vmem_bytes: int = 16 << 20
    smem_words: int = 4096
    imem_bundles: int = 2048
    hbm_bytes: int = 4 << 30
    hbm_channels: int = 4
    mac_latency: int = 2
    issue_cycles: int = 1
    link_bytes: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            object.__setattr__(self, name, integer(name, getattr(self, name), low, high))
        if self.issue_cycles == 2:
            raise ValueError(f"issue_cycles must be 1 or 3, not {self.issue_cycles!r}")
        for name in ("hbm_bytes", "hbm_channels"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value!r}")
        if self.link_bytes and (self.link_bytes & (self.link_bytes - 1) or self.link_bytes < 4
                                or self.row_bytes % self.link_bytes):
            raise ValueError("link_bytes must be 0 or a power of two that divides row_bytes "
                             f"({self.row_bytes}), at least 4, not {self.link_bytes!r}")
        if self.array % self.sublanes:
            raise ValueError(f"sublanes must divide array ({self.array}), not {self.sublanes!r}")
        vreg_bytes = self.sublanes * self.lanes * 4
        if self.vmem_bytes % vreg_bytes:
            raise ValueError(
                f"vmem_bytes must be a multiple of one vector register ({vreg_bytes} bytes), "
                f"not {self.vmem_bytes!r}"
            )

    @classmethod
    def preset(cls, name: str, **changes: int) -> "Config":
        """Return the preset ``name`` with the parameters in ``changes`` replaced.

        Parameters
        ----------
        name : str
            `tiny`, `small`, `v2` or `fpga`.
        **changes : int
            New values of parameters of `Config`, by name.

        Raises
        ------
        TypeError, ValueError
            If the preset or a parameter does not exist, or a changed value is invalid.
        """
        if not isinstance(name, str):
            raise TypeError(f"preset must be a string, not {name!r}")
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, not {name!r}")
        known = [field.name for field in fields(cls)]
        for parameter in changes:
            if parameter not in known:
                raise TypeError(f"parameter must be one of {', '.join(known)}, not {parameter!r}")
        return replace(PRESETS[name], **changes)

    @property
    def core_config(self) -> "Config":
        """The same parameters, but with the smallest HBM and one channel: neither affects a core.

        Chips that differ only in these have the same core.
        """
        return replace(self, hbm_bytes=_BOUNDS["hbm_bytes"][0],
                       hbm_channels=_BOUNDS["hbm_channels"][0])

    @property
    def lanes(self) -> int:
        """Vector lanes: the same number as columns of the array."""
        return self.array

    @property
    def vmem_vectors(self) -> int:
        """Number of vectors in vector memory; its addresses count vectors."""
        return self.vmem_bytes // (self.sublanes * self.lanes * 4)

    @property
    def row_bytes(self) -> int:
        """Bytes of an HBM row of ``lanes`` words, which is the unit of a DMA transfer."""
        return 4 * self.lanes

    @property
    def channel_bytes(self) -> int:
        """Bytes of each row that one memory channel holds; also the channel's data width."""
        return self.row_bytes // self.hbm_channels

    @property
    def hbm_rows(self) -> int:
        """Number of whole rows in the HBM."""
        return self.hbm_bytes // self.row_bytes

    @property
    def hbm_address_bits(self) -> int:
        """Width in bits of a byte address within one channel."""
        return ceil_log2(self.hbm_bytes // self.hbm_channels)

    @property
    def tile_vregs(self) -> int:
        """Vectors in a ``lanes`` x ``lanes`` tile; also the number of pushes in a weight load."""
        return self.array // self.sublanes

    @property
    def result_vregs(self) -> int:
        """Greatest number of result vectors that the array can hold; a push beyond it is a fault.

        This number does not depend on ``mac_latency``. If ``mac_latency`` is 1 or 2, it is large
        enough to push one row in each cycle.
        """
        return (1 << ceil_log2(2 * self.array + 6)) // self.sublanes

    @property
    def row_skew(self) -> int:
        """Delay in cycles of each array row relative to the row above it.

        A cell of two or more stages needs the partial sum from above one cycle after the
        activation. So the delay is one cycle less than the depth of a cell.
        """
        return max(1, self.mac_latency - 1)

    @property
    def operand_depth(self) -> int:
        """Entries of a lane's activation FIFO, and of its weight FIFO.

        They cover the skew of the last array row, and the three cycles between the acceptance of a
        row and its read by the first lane.
        """
        return 1 << ceil_log2(self.row_skew * (self.array - 1) + 4)

    @property
    def array_latency(self) -> int:
        """Cycles from the acceptance of an activation row to the output of its result row."""
        return self.row_skew * (self.array - 1) + self.mac_latency + (self.array - 1) + 5

    @property
    def result_depth(self) -> int:
        """Entries of a lane's result FIFO: enough for all rows in the array at full rate."""
        return 1 << ceil_log2(self.array_latency + 2)


PRESETS = {
    "tiny": Config(array=4, sublanes=2, vmem_bytes=8 << 10,
                   smem_words=256, imem_bundles=512, hbm_bytes=1 << 20, hbm_channels=1),
    "small": Config(array=8, sublanes=4, vmem_bytes=64 << 10,
                    smem_words=1024, imem_bundles=512, hbm_bytes=16 << 20, hbm_channels=2),
    "v2": Config(array=128, sublanes=8, vmem_bytes=16 << 20),
    "fpga": Config(array=4, sublanes=1, cores=1, vmem_bytes=64 << 10,
                   smem_words=1024, imem_bundles=1024, hbm_bytes=16 << 20, hbm_channels=1,
                   mac_latency=3, issue_cycles=3),
}
"""Named configurations: `tiny` for unit tests and proofs, `small` for regressions in pure RTL, `v2`
for the full size, and `fpga` for an FPGA of 84,000 lookup tables (LFE5U-85F)."""
