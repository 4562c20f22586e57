"""Traces of pods: the cores of all chips on one time axis, and packets as arrows between chips."""

import pathlib
from collections import Counter

import numpy as np
import pytest

from hdl.dma.format import pack_remote
from sim.asm.descriptor import descriptor, remote_vmem, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.driver.pod import Pod
from verif.sim.trace.test_trace import Trace

LATENCY = 9
WAYS = (1, 0), (0, -1), (-1, 1)
"""Hops along X and along Y to the three other chips of 2 x 2."""
VECTORS = 3


def send(pod: Pod) -> tuple[Counter[tuple[str, str, str]], dict[tuple[int, int, int], int]]:
    """Let all cores send three vectors and a signal to both cores of all other chips.

    Return how many packets went from each chip and core to each chip, and the cycles of each core.
    """
    wanted: Counter[tuple[str, str, str]] = Counter()
    words: list[int] = []
    lines = []
    for hops in WAYS:
        for core in range(2):
            made = descriptor(pod.config, vmem(0), remote_vmem(20, *hops, core),
                              rows=2 * VECTORS, semaphore=sem[0])
            lines += [f"{{ misc.dma {len(words)} | s0.add s1, s0, {pack_remote(*hops, core)} }}",
                      "{ misc.signal_remote sem3, s1, 9 }"]
            words += [*made, *[0] * (16 - len(made))]
    for x, y in pod.places:
        for core in range(2):
            pod[x, y].write_smem(core, 0, np.array(words, np.uint32))
            for dx, dy in WAYS:
                wanted[f"chip {x, y}", f"core {core}",
                       f"chip {(x + dx) % 2, (y + dy) % 2}"] += 2 * (VECTORS + 1)
    program = assemble("\n".join([*lines, f"{{ misc.wait sem0, {len(lines) // 2} }}",
                                  "{ s1.halt }"]))
    counts = pod.run(dict.fromkeys(range(2), program), cycles=20_000)
    return wanted, {place: count["cycles"] for place, count in counts.items()}


def test_arrows_join_the_chips_that_send_and_receive(tmp_path: pathlib.Path) -> None:
    with Pod.open((2, 2), "tiny", latency=LATENCY, trace=tmp_path / "pod") as pod:
        assert pod.model is not None
        wanted, cycles = send(pod)
        end = pod.model.cycle
    with Pod.open((2, 2), "tiny", latency=LATENCY) as pod:
        assert send(pod)[1] == cycles, "a trace must change no cycle"
    trace = Trace(tmp_path / "pod.json")
    found: Counter[tuple[str, str, str]] = Counter()
    for name, ((first, out), start), ((last, into), stop) in trace.arrows():
        if name != "packet":
            continue
        source, target = (process.removesuffix(" links") for process in (first, last))
        assert stop["name"] == f"{source} {start['name']}"
        hops = sum(a != b for a, b in zip(source, target, strict=True))
        # The last hop is along Y if the packet turns.
        assert out[-2] == ("X" if source[6] != target[6] else "Y")
        assert into[-2] == ("Y" if source[9] != target[9] else "X")
        passed = stop["ts"] + stop["dur"] - start["ts"] - start["dur"]
        assert passed >= hops * (LATENCY + 3) - 1
        found[source, start["name"], target] += 1
    assert found == wanted
    for x, y in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for core in range(2):
            (halted,) = [event for event in trace.tracks[f"chip {x, y} core {core}", "slot s1"]
                         if event["name"] == "halt"]
            assert 0 < halted["ts"] < end
    assert all(0 <= event["ts"] <= event["ts"] + event["dur"] <= end
               for track in trace.tracks.values() for event in track)
    with pytest.raises(ValueError, match="trace must be None for the golden backend"):
        Pod.open((2, 1), "tiny", "golden", trace=tmp_path / "golden")
