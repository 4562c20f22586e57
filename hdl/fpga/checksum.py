"""The checksum of frames: CRC-32 of IEEE 802.3, a byte in each cycle."""

from functools import reduce
from operator import xor

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Checksum"]

_POLYNOMIAL = 0xEDB88320
"""The polynomial with its lowest power in the highest bit, because bytes come low bit first."""
_BITS = 32
_ALL = (1 << _BITS) - 1
_RESIDUE = 0xDEBB20E3
"""Value of the checksum register after any frame that ends with its correct checksum."""


def _after(register: int, byte: int) -> int:
    """Return the checksum register's value after ``byte``, if its value before is ``register``."""
    register ^= byte
    for _ in range(8):
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
    return register


class Checksum(wiring.Component):
    """Computes the checksum of the bytes since ``start``.

    Attributes
    ----------
    start : In(1)
        Begin a new checksum; not in a cycle with ``valid``.
    valid, data : In(1), In(8)
        Add a byte.
    value : Out(32)
        The checksum of the bytes so far.
    match : Out(1)
        The last four bytes are the checksum of those before, low byte first.
    """

    def __init__(self) -> None:
        super().__init__({"start": In(1), "valid": In(1), "data": In(8), "value": Out(32),
                          "match": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        register = Signal(_BITS, init=_ALL)
        # The new value is linear: each bit is the exclusive or of bits of the old value and byte.
        bits = [*register, *self.data]
        effects = [*(_after(1 << bit, 0) for bit in range(_BITS)),
                   *(_after(0, 1 << bit) for bit in range(8))]
        with m.If(self.start):
            m.d.sync += register.eq(_ALL)
        with m.Elif(self.valid):
            m.d.sync += register.eq(Cat(
                reduce(xor, [bit for bit, effect in zip(bits, effects, strict=True)
                             if effect >> place & 1]) for place in range(_BITS)))
        m.d.comb += [self.value.eq(~register), self.match.eq(register == _RESIDUE)]
        return m
