"""A program for all chips of a torus: each core adds vectors over all chips, ring by ring."""

from dataclasses import dataclass

from hdl.config import Config
from hdl.dma.format import pack_remote
from sim.asm.descriptor import descriptor, remote_vmem, vmem
from sim.asm.operands import sem

__all__ = ["RingProgram", "ring_program"]

_PITCH = 16
"""Words of scalar memory from one descriptor to the next."""


@dataclass(frozen=True)
class RingProgram:
    """The text of a core's program, and the contents of its scalar memory from address 0 on."""

    text: str
    smem: list[int]


def ring_program(config: Config, shape: tuple[int, int], vectors: int, core: int) -> RingProgram:
    """Program that replaces ``vmem[0]`` … ``vmem[vectors - 1]`` by their sums over all chips.

    The sums are of integers, modulo 2**32, so their order does not matter. Core 0 adds along X,
    then along Y; core 1 along Y, then along X. In each step of a ring, a core sends the vectors
    that it received last to the next chip, as soon as that chip has signalled that its buffer is
    free.

    Parameters
    ----------
    config : Config
        Configuration of the chips; vector memory has at least 7 * ``vectors`` vectors.
    shape : tuple of int
        Chips along X and along Y.
    vectors : int
        Number of vectors that each core adds.
    core : int
        The core that executes the program.
    """
    order = ((1, 0), (0, 1))[::1 if core == 0 else -1]
    text, words = [], [0] * 2 * _PITCH
    for phase, (dx, dy) in enumerate(order):
        # Each phase has its own buffers and semaphores: neighbours may be a phase ahead.
        out, into = (vectors * (1 + 2 * phase + part) for part in (0, 1))
        left, got, free = (4 * phase + part for part in (0, 1, 2))
        steps = shape[dy] - 1
        if not steps:
            continue
        made = descriptor(config, vmem(out), remote_vmem(into, dx, dy, core),
                          rows=vectors * config.sublanes, semaphore=sem[left],
                          remote_semaphore=sem[got])
        words[_PITCH * phase:_PITCH * phase + len(made)] = made
        text.append(f"""
            {{ s0.add s1, s0, {steps} | s1.add s2, s0, {vectors} }}
            {{ s0.add s3, s0, {pack_remote(-dx, -dy, core)} | s1.add s4, s0, 0 }}
            copy{phase}: {{ ld.load v1, s4 }}
            {{ st.store v1, s4, {out} | s0.add s4, s4, 1 | s1.loop s2, copy{phase} }}
            again{phase}: {{ misc.signal_remote sem{free}, s3, 1 }}
            {{ misc.wait sem{free}, 1 | s0.add s2, s0, {vectors} }}
            {{ misc.dma {_PITCH * phase} | s0.add s4, s0, 0 }}
            {{ misc.wait sem{left}, 1 }}
            {{ misc.wait sem{got}, 1 }}
            add{phase}: {{ ld.load v1, s4, {into} }}
            {{ ld.load v2, s4 | st.store v1, s4, {out} }}
            {{ v0.add v2, v2, v1 }}
            {{ st.store v2, s4 | s0.add s4, s4, 1 | s1.loop s2, add{phase} }}
            {{ s1.loop s1, again{phase} }}""")
    return RingProgram("\n".join([*text, "{ s1.halt }"]), words)
