"""Writes code that copies elements of values to scalar memory and scalar registers."""

from collections.abc import Sequence

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import Scalar, s
from sim.compiler.graph.ir import Value
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.transfers import Rows, Vectors, scalar_words
from sim.compiler.program.places.places import Places, Splat

__all__ = ["copy_scalars", "read_scalar"]


def read_scalar(places: Places, config: Config, value: Value, register: Scalar) -> None:
    """Write code that copies a value of one element to a scalar register.

    The value passes through the window of scalar memory.
    """
    home, stream = places.homes.get(value), places.memory.stream
    if isinstance(home, Splat):
        stream.bundle((Slot.S0, "add", (register, s[0], home.word)))
    else:
        copy_scalars(places, config, [value])
        stream.bundle((Slot.S0, "load", (register, s[0], ScalarMemory(config).window.start)))


def copy_scalars(places: Places, config: Config, values: Sequence[Value]) -> None:
    """Write code that copies the first row of each value to scalar memory, and waits.

    Value number i goes to row i of the window. A transfer from vector memory copies a whole vector,
    so it also overwrites the rows after that one. These are rows of the next values, or words that
    belong to the kernel (`ScalarMemory.reads`).
    """
    last, memory = 0, places.memory
    for row, value in enumerate(values):
        place = scalar_words(ScalarMemory(config).window.start + row * config.lanes)
        buffer, home = places.buffer(value), places.homes.get(value)
        if isinstance(home, Rows) and (buffer is None or not memory.has_arrived(buffer)):
            places.wait_stored(value)
            last = memory.issue(home, place, 1)
        else:
            assert buffer is not None, "constants are not read"
            memory.settle([buffer])  # A value from an exchange may have no home.
            last = memory.issue(Vectors(buffer.address), place, config.sublanes)
    memory.wait(last)
