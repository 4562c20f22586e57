"""The queue of started transfers, from which each stage of the engine reads them in order."""

from amaranth import Array, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..config import Config
from .interface import QUEUE_DEPTH, check_config, transfer

__all__ = ["STAGES", "TransferQueue"]

STAGES = ("reader", "collector", "issuer", "writer", "completion")
"""Stages that each transfer passes through. The last stage frees the transfer's place in the queue.
"""


class TransferQueue(wiring.Component):
    """A queue of `QUEUE_DEPTH` transfers, which every stage reads in order, at its own pace.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    push, transfer, room : In(1), In(transfer), Out(1)
        ``push`` adds ``transfer``; allowed only while ``room`` is set.
    {stage}_valid, {stage}_transfer, {stage}_place : Out(1), Out(transfer), Out(2)
        For each of `STAGES`: the stage's next transfer, and its place in the queue.
    {stage}_take : In(1)
        The stage takes its next transfer; allowed only if ``{stage}_valid`` is set.
    clear : In(1)
        Removes all transfers.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        self._bits = exact_log2(QUEUE_DEPTH)
        super().__init__({
            "push": In(1), "transfer": In(transfer(config)), "room": Out(1), "clear": In(1),
            **{name: member for stage in STAGES for name, member in (
                (f"{stage}_valid", Out(1)), (f"{stage}_transfer", Out(transfer(config))),
                (f"{stage}_place", Out(self._bits)), (f"{stage}_take", In(1)))},
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self._bits
        places = Array(Signal(transfer(self._config), name=f"place_{number}", reset_less=True)
                       for number in range(QUEUE_DEPTH))
        # One bit more than the number of a place, so that a full queue differs from an empty one.
        pushed = Signal(bits + 1)
        taken = {stage: Signal(bits + 1, name=f"{stage}_taken") for stage in STAGES}
        used = Signal(bits + 1)
        m.d.comb += [used.eq(pushed - taken[STAGES[-1]]), self.room.eq(~used[bits])]
        with m.If(self.push):
            m.d.sync += [places[pushed[:bits]].eq(self.transfer), pushed.eq(pushed + 1)]
        for stage, number in taken.items():
            m.d.comb += [
                getattr(self, f"{stage}_valid").eq(number != pushed),
                getattr(self, f"{stage}_place").eq(number[:bits]),
                getattr(self, f"{stage}_transfer").eq(places[number[:bits]]),
            ]
            with m.If(getattr(self, f"{stage}_take")):
                m.d.sync += number.eq(number + 1)
        with m.If(self.clear):
            m.d.sync += [pushed.eq(0), *(number.eq(0) for number in taken.values())]
        return m
