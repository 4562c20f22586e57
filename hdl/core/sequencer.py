"""The sequencer: issues one bundle a cycle, in order, each when nothing it needs is outstanding."""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import Config
from ..vpu.interface import (
    LoadIssue,
    MasksWritten,
    RegistersWritten,
    RegisterWrite,
    StoreIssue,
    VectorIssue,
)
from .interface import (
    FAULT_BITS,
    WAITS,
    Response,
    RowPush,
    SemaphoreSignal,
    XluIssue,
    core_request,
)

__all__ = ["Sequencer"]


class Sequencer(wiring.Component):
    """Fetches bundles, executes their scalar operations, and issues the others to the units.

    A bundle issues in one cycle, all of it or nothing of it, when

    1. no register or mask that it reads or writes has a write outstanding, none that it writes is
       still to be read, its vector operations find their write ports free, and the units it needs
       are ready; until then it waits;
    2. it has no fault; otherwise the core stops and nothing of the bundle happens;
    3. the semaphore is high enough that it waits for, if it does.

    Taken branches cost nothing. A start costs one cycle, in which the first bundle is fetched.

    Attributes
    ----------
    start, start_pc : In(1), In(32)
        Runs from that bundle on, and clears ``fault``; ignored while running.
    stop : In(1)
        Stops after this cycle; ``pc`` is the bundle to go on with. Ignored while not running.
    watchdog : In(32)
        Cycles without an issue after which the core stops with a fault; 0: never.
    running : Out(1)
        Neither stopped nor halted.
    fault : Out(4)
        Why it stopped: a `hdl.isa.Fault`.
    pc : Out(32)
        The bundle that is about to issue, or that halted, or that has the fault.
    request, response : In(stream of core_request), Out(Response)
        The host's access to instruction memory, scalar memory, scalar registers and semaphores.
        While the core runs, only writes of instruction memory are accepted.
    signal : In(SemaphoreSignal)
        Adds to a semaphore at any time. If it would overflow, the semaphore stays and the core
        stops with a fault at the bundle that would have been next.
    v0, v1, load, store, push_x, push_w, pop, xlu : Out
        Operations that issue in this cycle.
    x_ready, w_ready, pop_ready, xlu_ready : In(1)
        The unit takes an operation in this cycle.
    x_free, w_free, xlu_free : In(1)
        The unit would read its source register in the very next cycle. Only then may a bundle issue
        that also overwrites this register.
    x_pending, w_pending, xlu_pending : In(RegisterWrite)
        Registers that these units will read in a later cycle than this.
    written, mask_written : In(RegistersWritten), In(MasksWritten)
        From the vector unit. A bundle that needs the register may issue in this very cycle.
    waiting_{wait} : Out(1)
        A bundle is held up in this cycle, by each of `WAITS`; at most one is set.
    issue : Out(1)
        The bundle at ``pc`` issues in this cycle.
    busy : Out(1)
        A register or mask awaits the result of an operation that has issued.
    """

    def __init__(self, config: Config) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a Config, not {config!r}")
        self._config = config
        super().__init__({
            "start": In(1), "start_pc": In(32), "stop": In(1), "watchdog": In(32),
            "running": Out(1), "fault": Out(FAULT_BITS), "pc": Out(32),
            "request": In(stream.Signature(core_request())), "response": Out(Response()),
            "signal": In(SemaphoreSignal()),
            "v0": Out(VectorIssue()), "v1": Out(VectorIssue()),
            "load": Out(LoadIssue(config)), "store": Out(StoreIssue(config)),
            "push_x": Out(RowPush()), "push_w": Out(RowPush()), "pop": Out(RegisterWrite()),
            "xlu": Out(XluIssue()),
            "x_ready": In(1), "w_ready": In(1), "pop_ready": In(1), "xlu_ready": In(1),
            "x_free": In(1), "w_free": In(1), "xlu_free": In(1),
            "x_pending": In(RegisterWrite()), "w_pending": In(RegisterWrite()),
            "xlu_pending": In(RegisterWrite()),
            "written": In(RegistersWritten()), "mask_written": In(MasksWritten()),
            **{f"waiting_{wait}": Out(1) for wait in WAITS},
            "issue": Out(1), "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        return m
