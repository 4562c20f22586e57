"""A test program that several ranks run: `python -m verif.sim.driver.ranks.program FUNCTION`."""

import hashlib
import os
import signal
import sys
from typing import Any

import numpy as np

from hdl.dma.format import pack_remote
from sim.asm.text import assemble
from sim.driver.pod import Pod
from sim.errors import CoreFaultError, DeviceTimeoutError
from sim.models.ranks import lifeline
from sim.models.ranks.ranks import default_communicator
from verif.models.ring import ring_program

SHAPE = 4, 2
VECTORS = 2


def reduce(pod: Pod) -> list[Any]:
    """Add random vectors over all chips; return results, counters, cycles and link counters."""
    rng = np.random.default_rng(1)
    programs = {}
    for core in range(2):
        made = ring_program(pod.config, pod.shape, VECTORS, core)
        programs[core] = assemble(made.text, pod.config)
        for place in np.ndindex(pod.shape):
            shape = VECTORS, pod.config.sublanes, pod.config.lanes
            pod[place].write_vmem(core, 0, rng.integers(0, 1 << 32, shape, np.uint32))
            pod[place].write_smem(core, 0, made.smem)
    found: list[Any] = [pod.run(programs, cycles=100_000)]
    found += [pod[x, y].read_vmem(core, 0, VECTORS).tolist()
              for x, y in np.ndindex(pod.shape) for core in range(2)]
    assert pod.model is not None
    return [*found, pod.model.cycle, pod.model.link_counters().tolist()]


def errors(pod: Pod) -> list[str]:
    """Return the messages of a fault, of an endless wait, and of a program that does not end."""
    found = []
    halt = assemble("{ s1.halt }")
    for text, seconds in (("{ } { misc.signal_remote sem3, s0, 9 }", None),
                          ("{ misc.wait sem1, 1 } { s1.halt }", 1e9), ("{ s1.jump 0 }", 0)):
        try:
            pod.run({0: halt, (3, 1, 1): assemble(text)}, seconds=seconds)
        except (CoreFaultError, DeviceTimeoutError) as error:
            found.append(str(error))
        pod.reset()
    return found


def one_device(pod: Pod) -> list[Any]:
    """Use one chip, which another chip signals; return what it computes, and its counters."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((5, 5)).astype(np.float32) for _ in range(2))
    device = pod[2, 1]
    buffer = device.allocate(64)
    device.copy_in(buffer, np.arange(16, dtype=np.float32))
    device.load(1, assemble("{ misc.wait sem3, 9 } { s1.halt }"))
    pod[2, 0].load(0, assemble(f"{{ s0.add s1, s0, {pack_remote(0, 1, 1)} }} "
                               "{ misc.signal_remote sem3, s1, 9 } { s1.halt }"))
    device.start(1)
    pod[2, 0].start(0)
    device.wait([1], cycles=10_000)
    pod.wait()
    return [device.matmul(a, b).tolist(), device.copy_out(buffer, np.float32, (16,)).tolist(),
            device.counters(1)]


def main() -> None:
    what = sys.argv[1]
    communicator = default_communicator()
    rank = 0 if communicator is None else communicator.rank
    with Pod.open(SHAPE, "tiny", latency=20) as pod:
        if what == "all":
            found = [reduce(pod), errors(pod), one_device(pod)]
            digest = hashlib.sha256(repr(found).encode()).hexdigest()
            sys.stdout.write(f"{digest} {found[0][0][0, 0, 0]['cycles']} {found[0][-2]}\n"
                             + "\n".join(found[1]) + "\n")
            return
        reduce(pod)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        lifeline._PATIENCE = 0.5  # ranks that wait keep a processor busy
        if rank == 2:
            if what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            return
        while True:
            reduce(pod)


if __name__ == "__main__":
    main()
