"""The cell of the systolic array: one multiply-accumulate, an active and a shadow weight.

An activation moves one cell east in one cycle; a partial sum moves one cell south in ``row_skew``
cycles. Meanwhile new weights arrive from the north or from the west. After a swap, each cell keeps
the first weight that reaches it as its shadow weight, and passes all later ones on. So weights may
directly follow the wavefront of the swap through the array.
"""

import re

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..config import Config
from ..tiles import instantiate
from . import mac

__all__ = ["MacCell"]

CUTS: dict[int, tuple[type, ...]] = {
    1: (),
    2: (mac.Multiply,),
    3: (mac.Multiply, mac.AlignFine),
    4: (mac.Multiply, mac.AlignCoarse, mac.NormalizeCoarse),
    5: (mac.Multiply, mac.Compare, mac.AlignFine, mac.NormalizeMedium),
    6: (mac.Multiply, mac.Compare, mac.AlignFine, mac.NormalizeCoarse, mac.NormalizeFine),
}
"""For each depth (``mac_latency``): the steps of the datapath after which it has registers."""


class MacCell(wiring.Component):
    """Multiply-accumulate cell: ``p_south = p + x * weight``.

    All outputs are registered. The cell keeps its state in a cycle in which its pipeline is empty
    and none of ``x_valid``, ``swap``, ``w_north_valid`` and ``w_west_valid`` is set.

    Parameters
    ----------
    config : Config
        ``mac_latency`` sets the pipeline depth.

    Attributes
    ----------
    x, x_valid : In(16), In(1)
        Activation (bfloat16) from the west. It leaves one cycle later at ``x_east`` and
        ``x_valid_east``.
    swap : In(1)
        Makes the shadow weight the active one at the end of this cycle. The bit leaves one cycle
        later at ``swap_east``. It precedes the first activation of a tile by one cycle, which saves
        a multiplexer in the multiplier's path.
    w_north, w_north_valid, w_west, w_west_valid : In(16), In(1), In(16), In(1)
        A new weight (bfloat16), never from both sides in one cycle. The cell keeps it if it has no
        shadow weight yet. Otherwise the weight leaves one cycle later at ``w_next``: with
        ``w_south_valid`` if it came from the north, with ``w_east_valid`` if from the west.
    p : In(32)
        Partial sum (fp32) from the north, ``mac_latency - row_skew`` cycles after ``x``.
    p_south, p_valid : Out(32), Out(1)
        Partial sum, ``mac_latency`` cycles after ``x``, and ``x_valid`` with the same delay.
    """

    def __init__(self, config: Config) -> None:
        self._cuts = CUTS[config.mac_latency]
        super().__init__({
            "x": In(16), "x_valid": In(1), "swap": In(1),
            "w_north": In(16), "w_north_valid": In(1),
            "w_west": In(16), "w_west_valid": In(1),
            "p": In(32),
            "x_east": Out(16), "x_valid_east": Out(1), "swap_east": Out(1),
            "w_next": Out(16), "w_south_valid": Out(1), "w_east_valid": Out(1),
            "p_south": Out(32), "p_valid": Out(1),
        })

    @property
    def latency(self) -> int:
        """Cycles from ``x`` to ``p_south``."""
        return len(self._cuts) + 1

    def elaborate(self, platform: object) -> Module:
        m = Module()
        weight = self._elaborate_weights(m)
        self._elaborate_datapath(m, platform, weight)
        # The activation moves one cell east in each cycle.
        x = Signal(16, reset_less=True)
        with m.If(self.x_valid):
            m.d.sync += x.eq(self.x)
        m.d.comb += self.x_east.eq(x)
        m.d.sync += [self.x_valid_east.eq(self.x_valid), self.swap_east.eq(self.swap)]
        return m

    def _elaborate_weights(self, m: Module) -> Signal:
        """Keep an arriving weight as the shadow weight, or pass it on; return the active weight."""
        active = Signal(16, reset_less=True)
        shadow = Signal(16, reset_less=True)
        passing = Signal(16, reset_less=True)
        filled = Signal()
        arriving = Signal(16)
        arrives = Signal()
        m.d.comb += [
            arriving.eq(Mux(self.w_west_valid, self.w_west, self.w_north)),
            arrives.eq(self.w_west_valid | self.w_north_valid),
        ]
        with m.If(arrives):
            m.d.sync += passing.eq(arriving)
        with m.If(arrives & ~filled):
            m.d.sync += shadow.eq(arriving)
        with m.If(self.swap):
            m.d.sync += active.eq(shadow)
        m.d.sync += [
            filled.eq((filled | arrives) & ~self.swap),
            self.w_south_valid.eq(self.w_north_valid & filled),
            self.w_east_valid.eq(self.w_west_valid & filled),
        ]
        m.d.comb += self.w_next.eq(passing)
        return active

    def _elaborate_datapath(self, m: Module, platform: object, weight: Signal) -> None:
        """Connect the datapath's steps in series, with pipeline registers after those in `CUTS`."""
        bundle = mac.Operands.create(path=("operands",))
        m.d.comb += [bundle.x.eq(self.x), bundle.w.eq(weight)]
        valid = self.x_valid
        for make_step in mac.STEPS:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", make_step.__name__).lower()
            step = instantiate(m, platform, name, f"mac_{name}", make_step)
            wiring.connect(m, bundle, step.i)
            if make_step is mac.Compare:
                # This step is the first that needs the partial sum, which therefore may arrive
                # later than the activation.
                m.d.comb += step.acc.eq(self.p)
            bundle = step.o
            if make_step in self._cuts:
                bundle, valid = _register(m, name, bundle, valid)
        # The last stage: the output register.
        bundle, valid = _register(m, "p", bundle, valid)
        m.d.comb += [self.p_south.eq(bundle.bits), self.p_valid.eq(valid)]


def _register(m: Module, name: str, bundle: wiring.PureInterface,
              valid: Signal) -> tuple[wiring.PureInterface, Signal]:
    """Copy ``bundle`` into registers that load if ``valid`` is set.

    Return the registered copy, and ``valid`` delayed by one cycle.
    """
    later_valid = Signal(name=f"{name}_stage_valid")
    m.d.sync += later_valid.eq(valid)
    later = bundle.signature.create(path=(name,))
    for field, member in bundle.signature.members.items():
        register = Signal(member.shape, name=f"{name}_stage_{field}", reset_less=True)
        with m.If(valid):
            m.d.sync += register.eq(getattr(bundle, field))
        m.d.comb += getattr(later, field).eq(register)
    return later, later_valid
