"""The ALU of one vector slot in one element: operand registers, units, and result selection.

There are no valid bits: a control pipeline shared by all elements (`SlotControl` in
`hdl/vpu/control.py`) enables each step.
"""

from enum import IntEnum

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..isa import FLOAT_LATENCY, SIMPLE_LATENCY, SLOTS, TRANSCENDENTAL_LATENCY, Slot
from ..tiles import instantiate
from .float import FloatAdd, FloatMultiply, IntToFloat
from .random import IterativeRandom, Random
from .simple import LANE_BITS, SUBLANE_BITS, Simple
from .transcendental import FUNCTION_BITS, Transcendental

__all__ = ["FUNCTION_PORT_BITS", "OP_BITS", "SELECT_BITS", "STAGES", "AluUnit", "VectorAlu",
           "alu_units", "enable_ports"]

OP_BITS = SLOTS[Slot.V0]["op"]
SELECT_BITS = 3
FUNCTION_PORT_BITS = FUNCTION_BITS * Transcendental.latency


class AluUnit(IntEnum):
    """Units of an ALU. The values are the codes of ``select``, which chooses a unit's result."""

    SIMPLE = 0
    ADD = 1
    MULTIPLY = 2
    CONVERT = 3
    TRANSCENDENTAL = 4
    RANDOM = 5

    @property
    def port(self) -> str:
        """Prefix of the names of the unit's ports."""
        return self.name.lower()


# Two cycles of a latency lie outside the unit: the read and the write of the registers.
STAGES = {
    AluUnit.SIMPLE: SIMPLE_LATENCY - 2,
    AluUnit.ADD: FLOAT_LATENCY - 2,
    AluUnit.MULTIPLY: FLOAT_LATENCY - 2,
    AluUnit.CONVERT: FLOAT_LATENCY - 2,
    AluUnit.TRANSCENDENTAL: TRANSCENDENTAL_LATENCY - 2,
    AluUnit.RANDOM: TRANSCENDENTAL_LATENCY - 2,
}
"""Number of pipeline stages of each unit."""
assert Transcendental.latency == STAGES[AluUnit.TRANSCENDENTAL]


def alu_units(transcendental: bool) -> list[AluUnit]:
    """Return an ALU's units, with `TRANSCENDENTAL` and `RANDOM` only if ``transcendental``."""
    return [unit for unit in AluUnit if transcendental or unit < AluUnit.TRANSCENDENTAL]


def enable_ports(transcendental: bool, iterative: bool = False) -> dict[AluUnit, list[str]]:
    """For each unit, return the names of the ports that enable its stages, in order.

    Each stage has a port of one bit. ``transcendental`` and ``iterative`` are those of `VectorAlu`.
    """
    stages = STAGES | ({AluUnit.RANDOM: IterativeRandom.latency} if iterative else {})
    return {unit: [f"{unit.port}_{stage}" for stage in range(stages[unit])]
            for unit in alu_units(transcendental)}


class VectorAlu(wiring.Component):
    """The ALU of one slot in one element: starts up to one operation a cycle.

    In the first cycle of an operation, ``read`` loads the operands. In the following cycles the
    stages of a unit load, each with its own enable. In the cycle after the unit's last stage,
    ``select`` chooses the unit's result. A register holds while its enable is not set.

    Parameters
    ----------
    transcendental : bool
        Whether the ALU has the units for transcendental functions and random numbers.
    iterative : bool
        Whether the random number unit is an `IterativeRandom` instead of a `Random`.

    Attributes
    ----------
    read, a, b, p, q : In(1), In(32), In(32), In(1), In(1)
        ``read`` loads the operands: the words ``a`` and ``b``, and the mask bits ``p`` and ``q``.
    op : In(OP_BITS)
        With ``simple_0``: the `hdl.isa.VectorOp` that the simple unit executes.
    subtract : In(1)
        With ``add_0``: computes a - b instead of a + b.
    functions : In(FUNCTION_PORT_BITS)
        To the port of the same name of `Transcendental`: the `hdl.vpu.tables.Function` for each
        stage. Present only if ``transcendental`` is true.
    {unit}_{stage} : In(1)
        Enables of the stages, see `enable_ports`.
    lane, sublane : In(LANE_BITS), In(SUBLANE_BITS)
        Numbers of the element's lane and sublane.
    select : In(SELECT_BITS)
        The `AluUnit` that drives ``result``.
    result, flag : Out(32), Out(1)
        The result of the selected unit; the mask bit of the simple unit's last operation.
    """

    def __init__(self, transcendental: bool, iterative: bool = False) -> None:
        if not isinstance(transcendental, bool):
            raise TypeError(f"transcendental must be a bool, not {transcendental!r}")
        self._transcendental = transcendental
        self._enables = enable_ports(transcendental, iterative)
        self._iterative = iterative
        ports = {"read": In(1), "a": In(32), "b": In(32), "p": In(1), "q": In(1),
                 "op": In(OP_BITS), "subtract": In(1), "lane": In(LANE_BITS),
                 "sublane": In(SUBLANE_BITS),
                 "select": In(SELECT_BITS), "result": Out(32), "flag": Out(1)}
        if transcendental:
            ports["functions"] = In(FUNCTION_PORT_BITS)
        super().__init__(ports | {name: In(1) for names in self._enables.values()
                                  for name in names})

    @staticmethod
    def module(transcendental: bool, iterative: bool = False) -> str:
        """Name of the Verilog module of an ALU with these parameters."""
        if iterative:
            return "vpu_alu_iterative"
        return "vpu_alu_full" if transcendental else "vpu_alu"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a = Signal(32, reset_less=True)
        b = Signal(32, reset_less=True)
        p = Signal(reset_less=True)
        q = Signal(reset_less=True)
        with m.If(self.read):
            m.d.sync += [a.eq(self.a), b.eq(self.b), p.eq(self.p), q.eq(self.q)]

        results = {AluUnit.SIMPLE: self._simple(m, platform, a, b, p, q)}
        results |= self._float(m, platform, a, b)
        if self._transcendental:
            results |= self._slow(m, platform, a, b)
        with m.Switch(self.select):
            for unit, word in results.items():
                with m.Case(unit):
                    m.d.comb += self.result.eq(word)
        return m

    def _enable(self, unit: AluUnit) -> Value:
        return Cat(getattr(self, name) for name in self._enables[unit])

    def _simple(self, m: Module, platform: object, a: Signal, b: Signal, p: Signal,
                q: Signal) -> Signal:
        simple = instantiate(m, platform, "simple", "vpu_simple", Simple)
        m.d.comb += [
            simple.enable.eq(self._enable(AluUnit.SIMPLE)),
            simple.op.eq(self.op), simple.a.eq(a), simple.b.eq(b), simple.p.eq(p), simple.q.eq(q),
            simple.lane.eq(self.lane), simple.sublane.eq(self.sublane),
            self.flag.eq(simple.flag),
        ]
        return simple.result

    def _float(self, m: Module, platform: object, a: Signal, b: Signal) -> dict[AluUnit, Signal]:
        add = instantiate(m, platform, "add", "vpu_float_add", FloatAdd)
        multiply = instantiate(m, platform, "multiply", "vpu_float_multiply", FloatMultiply)
        convert = instantiate(m, platform, "convert", "vpu_int_to_float", IntToFloat)
        m.d.comb += [
            add.enable.eq(self._enable(AluUnit.ADD)), add.subtract.eq(self.subtract),
            add.a.eq(a), add.b.eq(b),
            multiply.enable.eq(self._enable(AluUnit.MULTIPLY)), multiply.a.eq(a), multiply.b.eq(b),
            convert.enable.eq(self._enable(AluUnit.CONVERT)), convert.a.eq(a),
        ]
        return {AluUnit.ADD: add.sum, AluUnit.MULTIPLY: multiply.product,
                AluUnit.CONVERT: convert.number}

    def _slow(self, m: Module, platform: object, a: Signal, b: Signal) -> dict[AluUnit, Signal]:
        function = instantiate(m, platform, "function", "transcendental", Transcendental)
        if self._iterative:
            random: Random | IterativeRandom = instantiate(
                m, platform, "random", "vpu_random_iterative", IterativeRandom)
        else:
            random = instantiate(m, platform, "random", "vpu_random", Random)
        m.d.comb += [
            function.enable.eq(self._enable(AluUnit.TRANSCENDENTAL)),
            function.functions.eq(self.functions), function.x.eq(a),
            random.enable.eq(self._enable(AluUnit.RANDOM)), random.a.eq(a), random.b.eq(b),
        ]
        return {AluUnit.TRANSCENDENTAL: function.y, AluUnit.RANDOM: random.y}
