"""Target technologies of the Verilog export."""

from enum import StrEnum

__all__ = ["Target"]


class Target(StrEnum):
    """A target technology; the enum value is the technology's name on the command line.

    A component that maps badly to some technology has a method ``variant(target)``. The method
    returns an equivalent component with the same ports, which replaces the component in a Verilog
    export for that target. The method returns None if the target needs no replacement. Tests prove
    the equivalence.
    """

    GENERIC = "generic"
    """Any simulator or technology: memories and register files are behavioural Verilog."""
    ECP5 = "ecp5"
    """Lattice ECP5: register files and semaphores in LUT RAM; one shifter for both directions."""
    XILINX = "xilinx"
    """Xilinx 7 series, UltraScale and UltraScale+: like ECP5, but with LUT RAMs of 32 words."""
