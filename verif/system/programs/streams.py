"""Programs with which both cores saturate one vector memory."""

from collections.abc import Sequence

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS
from sim.asm.descriptor import Place, descriptor, other_vmem, vmem
from sim.asm.operands import sem

__all__ = ["STREAMS", "STREAM_ROWS", "streaming"]

STREAMS, STREAM_ROWS = 4, 192
"""Number of transfers of each core, and rows of each transfer. All these rows together are many
times what the chip's buffers hold."""


def streaming(config: Config, core: int, victim: int, outside: Sequence[Place], free: int, *,
              reads: bool) -> tuple[str, list[tuple[int, ...]]]:
    """Text of a core's program, and the descriptors of its transfers, from word 0 of memory on.

    The transfers move rows between ``outside``, a place for each of them, and vector memory of the
    core ``victim``. If ``reads``, they write vector memory. Meanwhile the program loads and stores
    its own vectors ``free`` and ``free`` + 2.
    """
    inside = (vmem if core == victim else other_vmem)(core * STREAM_ROWS // config.sublanes)
    descriptors = [descriptor(config, *((place, inside) if reads else (inside, place)),
                              rows=STREAM_ROWS, semaphore=sem[4]) for place in outside]
    return "\n".join((
        "{ misc.signal_other sem5, 1 } { misc.wait sem5, 1 | s0.add s3, s0, 200 }",
        *(f"{{ misc.dma {DESCRIPTOR_WORDS * number} }}" for number in range(len(outside))),
        f"again: {{ ld.load v5, s0, {free} | st.store v6, s0, {free + 2} | s1.loop s3, again }}",
        f"{{ misc.wait sem4, {len(outside)} }} {{ s1.halt }}")), descriptors
