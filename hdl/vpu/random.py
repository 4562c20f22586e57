"""Random number unit of a vector-unit element: Threefry-2x32, 20 rounds (Salmon et al., 2011)."""

from amaranth import C, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["STAGES", "IterativeRandom", "Random"]

STAGES = 4
"""Number of register stages from the operands to the result."""

ROUNDS = 20
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
"""Distances in bits of the left rotations of the second word, by round; repeated cyclically."""
INJECTION = 4
"""Number of rounds between injections of the key."""
PARITY = 0x1BD11BDA
"""XOR of the three key words: the third word is this constant ^ the first two words."""


class Random(wiring.Component):
    """Computes the first word of Threefry-2x32-20 for counter (a, 0) and key (b, 0).

    It takes ``latency`` cycles. There are no valid bits: a control pipeline shared by all elements
    enables the stages.

    Attributes
    ----------
    enable : In(4)
        Bit s: stage s loads from stage s - 1; stage 0 loads the operands. A stage that is not
        enabled holds.
    a, b : In(32)
        First words of the counter and of the key.
    y : Out(32)
        Result, a register of the last stage.
    """

    latency = STAGES

    enable: In(STAGES)
    a: In(32)
    b: In(32)
    y: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # The key is first added to the counter; the second words of both are zero.
        first = Signal(32)
        second = Signal(32)
        key = self.b
        m.d.comb += [first.eq(self.a + self.b), second.eq(0)]
        # Each stage computes the same number of rounds.
        per_stage = ROUNDS // STAGES
        for stage in range(STAGES):
            for number in range(per_stage * stage, per_stage * (stage + 1)):
                first, second = self._round(m, number, first, second)
                if number % INJECTION == INJECTION - 1:
                    first, second = self._inject(m, number // INJECTION + 1, key, first, second)
            first = self._latch(m, stage, "first", first)
            if stage < STAGES - 1:
                second = self._latch(m, stage, "second", second)
                key = self._latch(m, stage, "key", key)
        m.d.comb += self.y.eq(first)
        return m

    def _latch(self, m: Module, stage: int, name: str, word: Signal) -> Signal:
        register = Signal(32, name=f"stage_{stage}_{name}", reset_less=True)
        with m.If(self.enable[stage]):
            m.d.sync += register.eq(word)
        return register

    def _round(self, m: Module, number: int, first: Signal,
               second: Signal) -> tuple[Signal, Signal]:
        """Apply round ``number`` of Threefry to the words ``first`` and ``second``.

        Return the two new words.
        """
        mixed = Signal(32, name=f"first_{number}")
        rotated = Signal(32, name=f"second_{number}")
        m.d.comb += [
            mixed.eq(first + second),
            rotated.eq(second.rotate_left(ROTATIONS[number % len(ROTATIONS)]) ^ mixed),
        ]
        return mixed, rotated

    def _inject(self, m: Module, count: int, key: Signal, first: Signal,
                second: Signal) -> tuple[Signal, Signal]:
        """Apply key injection ``count`` of Threefry to the words ``first`` and ``second``.

        It adds a key word, derived from ``key``, to each of them, and ``count`` to the second.
        Return the two new words.
        """
        words = (key, C(0, 32), key ^ PARITY)
        keyed_first = Signal(32, name=f"keyed_first_{count}")
        keyed_second = Signal(32, name=f"keyed_second_{count}")
        m.d.comb += [
            keyed_first.eq(first + words[count % 3]),
            keyed_second.eq(second + words[(count + 1) % 3] + count),
        ]
        return keyed_first, keyed_second


class IterativeRandom(wiring.Component):
    """Computes `Random` in iterations, each of `INJECTION` rounds and an injection of the key.

    An operation uses the unit for ``latency`` cycles. All iterations use the same hardware. Each
    rotation alternates between two distances; the choice between them fits in the lookup tables of
    the XOR after the rotation.

    Attributes
    ----------
    enable : In(6)
        Bit 0 loads the operands and injects the key. Bit i, in the i-th cycle after that, executes
        iteration i. At most one bit is set; if none is, the registers hold.
    a, b : In(32)
        First words of the counter and of the key.
    y : Out(32)
        Result, in the cycle after the last iteration and until the next operands are loaded.
    """

    latency = 1 + ROUNDS // INJECTION

    enable: In(1 + ROUNDS // INJECTION)
    a: In(32)
    b: In(32)
    y: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        key = Signal(32, reset_less=True)
        first = Signal(32, reset_less=True)
        second = Signal(32, reset_less=True)
        with m.If(self.enable[0]):
            m.d.sync += [key.eq(self.b), first.eq(self.a + self.b), second.eq(0)]
        with m.Elif(self.enable.any()):
            mixed, rotated = self._inject(m, key, *self._rounds(m, first, second))
            m.d.sync += [first.eq(mixed), second.eq(rotated)]
        m.d.comb += self.y.eq(first)
        return m

    def _rounds(self, m: Module, first: Signal, second: Signal) -> tuple[Signal, Signal]:
        """Return the two words after the rounds of the iteration that is enabled."""
        period = len(ROTATIONS) // INJECTION
        turn = Signal(range(period))
        for iteration in range(1, self.latency):
            with m.If(self.enable[iteration]):
                m.d.comb += turn.eq((iteration - 1) % period)
        for number in range(INJECTION):
            mixed = Signal(32, name=f"first_{number}")
            rotated = Signal(32, name=f"second_{number}")
            m.d.comb += mixed.eq(first + second)
            with m.Switch(turn):
                for i in range(period):
                    with m.Case(i):
                        distance = ROTATIONS[number + i * INJECTION]
                        m.d.comb += rotated.eq(second.rotate_left(distance) ^ mixed)
            first, second = mixed, rotated
        return first, second

    def _inject(self, m: Module, key: Signal, first: Signal,
                second: Signal) -> tuple[Value, Value]:
        """Return ``first`` and ``second`` plus the key words of the iteration that is enabled.

        The second sum also contains the number of the iteration.
        """
        words = (key, C(0, 32), key ^ PARITY)
        count = Signal(range(self.latency))
        for_first = Signal(32)
        for_second = Signal(32)
        for iteration in range(1, self.latency):
            with m.If(self.enable[iteration]):
                m.d.comb += [count.eq(iteration), for_first.eq(words[iteration % 3]),
                             for_second.eq(words[(iteration + 1) % 3])]
        return first + for_first, second + for_second + count
