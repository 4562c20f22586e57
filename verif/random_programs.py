"""Random programs on the core in RTL and on the golden machine, compared in every bit of state."""

import argparse
import sys

import numpy as np
from tqdm import tqdm

from golden.machine import Machine
from hdl import isa
from hdl.config import PRESETS, Config
from hdl.isa import ScalarOp, Slot
from sim.core import CoreModel
from sim.disassembler import disassemble
from sim.toolchain import build_folder
from verif.programs import STABLE, Generator, fill_registers, random_words

__all__ = ["compare_random", "differences", "prepare", "run_both"]


def differences(golden: dict, rtl: dict) -> list[str]:
    """What differs between two states, a line for each part, with the first place."""
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


def prepare(machine: Machine, core: CoreModel, rng: np.random.Generator) -> None:
    """The same random contents for both: memories, registers and masks."""
    config = machine.config
    vmem = random_words(rng, machine.vmem.shape)
    smem = random_words(rng, machine.smem.shape)
    semaphores = rng.integers(0, 1 << 16, isa.SEMAPHORES, dtype=np.uint32)
    machine.vmem[:] = vmem
    machine.smem[:] = smem
    machine.semaphores[:] = semaphores
    core.write_vmem(0, vmem)
    core.write_smem(0, smem)
    core.write_semaphores(semaphores)
    bundles = fill_registers(config)
    bundles.append(isa.pack({Slot.S1: {"op": ScalarOp.HALT}}))
    for first in range(0, len(bundles), config.imem_bundles - 1):
        part = bundles[first:first + config.imem_bundles - 1]
        run_both(machine, core, [*part, bundles[-1]])


def run_both(machine: Machine, core: CoreModel, bundles: list[int]) -> None:
    """Loads a program into both and runs it until both have stopped."""
    machine.load_program(bundles)
    machine.start(0)
    machine.run(50 * len(bundles) + 1000)
    core.load_program(bundles)
    core.start(0)
    core.run(_limit(machine.config, 50 * len(bundles) + 1000))


def _limit(config: Config, executed: int) -> int:
    """Cycles within which so many bundles must have been executed: each drains everything."""
    return 10_000 + executed * (config.array_latency + 4 * config.sublanes + 100)


def compare_random(config: Config, core: CoreModel, bundles: int, seed: int, *,
                   length: int | None = None, progress: bool = False) -> dict[str, int]:
    """Runs random programs until ``bundles`` different bundles were executed.

    Parameters
    ----------
    config : Config
        Parameters of the core.
    core : CoreModel
        The core in RTL; its state is overwritten.
    bundles : int
        How many.
    seed : int
        Of all choices.
    length : int, optional
        Bundles of a program; as many as the memory holds, but 400 at most, if left out.
    progress : bool
        Show a bar.

    Returns
    -------
    dict of str to int
        ``programs``, ``bundles`` reached, ``executed`` (with repetitions), and how many programs
        ended with each fault.

    Raises
    ------
    AssertionError
        If any part of the state differs after a program; the message has the seed and the
        program's number, and names a file with its listing.
    """
    rng = np.random.default_rng(seed)
    machine = Machine(config)
    core.reset()
    prepare(machine, core, rng)
    generator = Generator(machine, rng)
    length = length or min(config.imem_bundles, 400)
    counts = {"programs": 0, "bundles": 0, "executed": 0}
    with tqdm(total=bundles, unit="bundle", disable=not progress) as bar:
        while counts["bundles"] < bundles:
            stable = rng.integers(0, 8, len(STABLE), dtype=np.uint32)
            machine.scalars[STABLE.start:STABLE.stop] = stable
            core.write_scalars(machine.scalars)
            program = generator.program(length, fault=bool(rng.random() < 0.6))
            code = [*program.bundles, *[0] * (config.imem_bundles - len(program.bundles))]
            core.load_program(code)
            core.start(0)
            core.run(_limit(config, program.executed))
            wrong = differences(machine.read_state(array=False), core.read_state())
            if wrong:
                raise AssertionError(_report(program.bundles, wrong, seed, counts["programs"]))
            counts["programs"] += 1
            counts["bundles"] += program.reached
            counts["executed"] += program.executed
            fault = machine.fault.name
            counts[fault] = counts.get(fault, 0) + 1
            bar.update(program.reached)
    return counts


def _report(bundles: tuple[int, ...], wrong: list[str], seed: int, number: int) -> str:
    folder = build_folder() / "random"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{seed}_program{number}.txt"
    path.write_text("".join(f"{address:5}: {disassemble(bundle)}\n"
                            for address, bundle in enumerate(bundles)))
    return "\n".join([f"seed {seed}, program {number} ({path}): the states differ", *wrong])


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
            counts = compare_random(config, core, options.bundles, options.seed, progress=True)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
    faults = ", ".join(f"{name.lower()} {count}" for name, count in sorted(counts.items())
                       if name.isupper())
    print(f"{options.config}, seed {options.seed}: {counts['programs']} programs, "
          f"{counts['bundles']} bundles, executed {counts['executed']} times: "
          f"every register, memory word and flag equal")
    print(f"ends: {faults}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
