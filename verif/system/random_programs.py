"""Random programs on the core in RTL and on the golden core, compared in every bit of state."""

import argparse
import sys
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from golden.core import GoldenCore
from hdl import isa
from hdl.config import PRESETS, Config
from hdl.encoding import pack, unpack
from hdl.isa import Fault, MiscOp, Operation, ScalarOp, Slot, Unit
from sim.asm.disassembler import disassemble
from sim.models.core import CoreModel
from sim.verilated.toolchain import build_folder
from verif.system.programs.bundles import fill_registers, flush, random_words
from verif.system.programs.generator import Generator, RandomProgram
from verif.system.programs.operands import STABLE

__all__ = ["ProgramOutcome", "compare_random", "differences", "prepare", "run_both", "run_flush"]

HALT = pack({Slot.S1: {"op": ScalarOp.HALT}})


@dataclass
class ProgramOutcome:
    """Statistics of random programs.

    Attributes
    ----------
    programs : int
        Programs whose state was compared.
    bundles, executed : int
        Number of bundles that were executed at least once, and number of executed bundles with
        repetitions.
    faults : Counter of Fault
        Number of programs that ended with each fault, or with none.
    operations : set of Operation
        Operations executed at least once.
    stops, accesses, signals : int
        How often the host stopped a program and started it again, accessed vector memory or
        registers while it ran, and added to a semaphore.
    """

    programs: int = 0
    bundles: int = 0
    executed: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    operations: set[Operation] = field(default_factory=set)
    stops: int = 0
    accesses: int = 0
    signals: int = 0

    def add(self, program: RandomProgram, fault: Fault) -> None:
        """Count a program whose state was compared; ``bundles`` has been updated already."""
        self.programs += 1
        self.executed += program.executed
        self.faults[fault] += 1
        self.operations |= program.operations


def differences(golden: dict, rtl: dict) -> list[str]:
    """Differences of two states: a line for each array, with the first element that differs."""
    lines = []
    if golden.keys() != rtl.keys():
        return [f"parts {sorted(golden.keys() ^ rtl.keys())} are not in both states"]
    for name in golden:
        expected, got = np.asarray(golden[name]), np.asarray(rtl[name])
        if expected.shape != got.shape:
            lines.append(f"{name}: shape {got.shape}, not {expected.shape}")
            continue
        wrong = np.argwhere(expected != got)
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            e, g = expected[place], got[place]
            lines.append(f"{name}{list(place)}: {int(g):#x}, not {int(e):#x} "
                         f"({len(wrong)} of {expected.size} differ)")
    return lines


def prepare(golden: GoldenCore, core: CoreModel, rng: np.random.Generator) -> None:
    """Gives both cores the same random contents of memories, registers and masks."""
    config = golden.config
    vmem = random_words(rng, golden.vmem.shape)
    smem = random_words(rng, golden.smem.shape)
    semaphores = rng.integers(0, 1 << 16, isa.SEMAPHORES, dtype=np.uint32)
    golden.vmem[:] = vmem
    golden.smem[:] = smem
    golden.semaphores[:] = semaphores
    core.write_vmem(0, vmem)
    core.write_smem(0, smem)
    core.write_semaphores(semaphores)
    run_both(golden, core, fill_registers(config))


def run_both(golden: GoldenCore, core: CoreModel, bundles: list[int]) -> None:
    """Runs bundles without branches on both cores, in as many programs as needed."""
    size = golden.config.imem_bundles - 1
    for first in range(0, len(bundles), size):
        program = [*bundles[first:first + size], HALT]
        golden.load_program(program)
        golden.start(0)
        golden.run(len(program))
        core.load_program(program)
        core.start(0)
        core.run(_limit(golden.config, len(program)))


def run_flush(golden: GoldenCore, core: CoreModel) -> list[str]:
    """Runs the bundles of `flush` on both cores; returns the differences of their states."""
    run_both(golden, core, flush(golden))
    return differences(golden.read_state(array=False), core.read_state())


def _limit(config: Config, executed: int) -> int:
    """Limit in cycles for the execution of bundles, if each of them must wait for all units."""
    return 10_000 + executed * (config.array_latency + 4 * config.sublanes + 100)


def compare_random(config: Config, core: CoreModel, bundles: int, seed: int, *,
                   length: int | None = None, progress: bool = False) -> ProgramOutcome:
    """Runs random programs until ``bundles`` different bundles were executed.

    The host disturbs some of the programs: it stops and restarts them, reads vector memory, and
    adds to semaphores that the program does not name. After the last program, the contents of the
    array and of the transposer are compared, too.

    Parameters
    ----------
    config : Config
        Parameters of the core.
    core : CoreModel
        The core in RTL; its state is overwritten.
    bundles : int
        Number of bundles.
    seed : int
        Seed of all choices.
    length : int, optional
        Number of bundles of a program; by default what instruction memory holds, at most 400.
    progress : bool
        Show a progress bar.

    Returns
    -------
    ProgramOutcome

    Raises
    ------
    AssertionError
        If any part of the state differs after a program, or the program does not end;
        the message has the seed and the program's number, and names a file with its listing.
    """
    rng = np.random.default_rng(seed)
    golden = GoldenCore(config)
    core.reset()
    prepare(golden, core, rng)
    generator = Generator(golden, rng, signals=True)
    length = length or min(config.imem_bundles, 400)
    outcome = ProgramOutcome()
    with tqdm(total=bundles, unit="bundle", disable=not progress) as bar:
        while outcome.bundles < bundles:
            scalars = _change_stable(golden, rng)
            program = generator.program(length, fault=bool(rng.random() < 0.6), busy_halt=True)
            try:
                core.write_scalars(scalars)
                _Run(core, golden, program, rng, outcome).run(disturb=bool(rng.random() < 0.3))
                wrong = differences(golden.read_state(array=False), core.read_state())
                outcome.bundles += program.reached
                if not wrong and outcome.bundles >= bundles:
                    wrong = run_flush(golden, core)
            except (TimeoutError, RuntimeError) as error:
                raise AssertionError(_report(program.bundles, [f"{error}"], seed,
                                             outcome.programs)) from error
            if wrong:
                raise AssertionError(_report(program.bundles, ["the states differ", *wrong], seed,
                                             outcome.programs))
            outcome.add(program, golden.fault)
            bar.update(program.reached)
    return outcome


def _change_stable(golden: GoldenCore, rng: np.random.Generator) -> np.ndarray:
    """Gives the registers of `STABLE` other values; returns all scalar registers."""
    golden.scalars[STABLE.start:STABLE.stop] = rng.integers(0, 8, len(STABLE), dtype=np.uint32)
    return golden.scalars.copy()


class _Run:
    """Runs on the core in RTL a program that the golden core has executed."""

    def __init__(self, core: CoreModel, golden: GoldenCore, program: RandomProgram,
                 rng: np.random.Generator, outcome: ProgramOutcome) -> None:
        self._core = core
        self._golden = golden
        self._program = program
        self._rng = rng
        self._outcome = outcome
        self._signals = deque(program.signals)

    def run(self, *, disturb: bool) -> None:
        """Runs the program until it stops.

        Raises
        ------
        RuntimeError
            If the program needs more or fewer signals of the host than on the golden core.
        TimeoutError
            If the program does not stop.
        """
        core, config = self._core, self._golden.config
        unused = config.imem_bundles - len(self._program.bundles)
        core.load_program([*self._program.bundles, *[0] * unused])
        core.start(0)
        if disturb:
            self._disturb()
        core.run(_limit(config, self._program.executed))
        while core.running:
            if not self._signals:
                raise RuntimeError(f"the core waits for a semaphore at bundle {core.pc}")
            self._signal()
            core.run(_limit(config, self._program.executed))
        if self._signals:
            raise RuntimeError(f"the core did not wait for {len(self._signals)} signals")

    def _signal(self) -> None:
        index, amount = self._signals.popleft()
        self._core.signal(index, amount)
        self._outcome.signals += 1

    def _disturb(self) -> None:
        core, rng = self._core, self._rng
        # An overflow would stop the core at any bundle.
        spare = [index for index in _unnamed_semaphores(self._program.bundles)
                 if self._golden.semaphores[index] < 1 << 31]
        often = int(rng.choice((10, 40, 150)))
        for _ in range(int(rng.integers(60))):
            core.model.tick(int(rng.integers(often)))
            if not core.running:
                break
            choice = int(rng.integers(4))
            if choice == 0:
                self._stop()
            elif choice == 1:
                first = int(rng.integers(self._golden.config.vmem_vectors))
                core.read_vmem(first, min(2, self._golden.config.vmem_vectors - first))
                self._outcome.accesses += 1
            elif choice == 2:
                core.read_masks()
                self._outcome.accesses += 1
            elif spare:
                index, amount = spare[int(rng.integers(len(spare)))], int(rng.integers(1000))
                core.signal(index, amount)
                self._golden.signal(index, amount)
                self._outcome.signals += 1
            if core.waiting and self._signals:
                self._signal()

    def _stop(self) -> None:
        """Stops the program and restarts it where it stopped."""
        core, golden = self._core, self._golden
        # A bundle that halts in the cycle of the stop has been executed, but the program counter
        # stays at it: it would be executed again.
        if core.pc == golden.pc and not golden.fault:
            return
        core.stop()
        if self._rng.integers(2):
            core.run(_limit(golden.config, 1))
        if self._rng.integers(2):
            core.read_scalars()
        if not core.fault:
            core.start(core.pc)
        self._outcome.stops += 1


def _unnamed_semaphores(bundles: tuple[int, ...]) -> list[int]:
    """Semaphores that no bundle reads or writes."""
    named: set[int] = set()
    for bundle in bundles:
        misc = unpack(bundle)[0][Slot.MISC]
        operation = isa.operation(Slot.MISC, misc["op"])
        if operation is not None and operation.unit is Unit.SEMAPHORE:
            named.add(misc["a" if operation.op == MiscOp.READ_SEMAPHORE else "d"])
    return sorted(set(range(isa.SEMAPHORES)) - named)


def _report(bundles: tuple[int, ...], what: list[str], seed: int, number: int) -> str:
    folder = build_folder() / "random"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{seed}_program{number}.txt"
    path.write_text("".join(f"{address:5}: {disassemble(bundle)}\n"
                            for address, bundle in enumerate(bundles)))
    return "\n".join([f"seed {seed}, program {number} ({path}): {what[0]}", *what[1:]])


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", choices=PRESETS)
    parser.add_argument("--bundles", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--verilog", action="store_true", help="pure Verilog, no tile kernels")
    options = parser.parse_args(arguments)
    if options.bundles < 1:
        parser.error(f"--bundles must be at least 1, not {options.bundles}")
    config = Config.preset(options.config)
    with CoreModel(config, kernels=not options.verilog) as core:
        try:
            outcome = compare_random(config, core, options.bundles, options.seed, progress=True)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
    faults = ", ".join(f"{fault.name.lower()} {count}"
                       for fault, count in sorted(outcome.faults.items()))
    print(f"{options.config}, seed {options.seed}: {outcome.programs} programs, "
          f"{outcome.bundles} bundles, executed {outcome.executed} times: "
          f"every register, memory word and flag equal")
    print(f"ends: {faults}")
    print(f"host: stopped {outcome.stops} times, looked {outcome.accesses} times, "
          f"signalled {outcome.signals} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
