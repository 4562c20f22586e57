"""Technologies that the Verilog can be exported for."""

from enum import StrEnum

__all__ = ["Target"]


class Target(StrEnum):
    """A technology; its value is its name on the command line.

    A component that maps badly to a technology has a method ``variant(target)``. It returns an
    equivalent component, with the same ports, that takes the component's place in a Verilog export
    for that target; None: the component itself is exported. Tests prove the equivalence.
    """

    GENERIC = "generic"
    """Any simulator or technology: behavioural memories and register files."""
    ECP5 = "ecp5"
    """Lattice ECP5: register files and semaphores of LUT RAM, one shifter for both directions."""
