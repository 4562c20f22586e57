"""``make packets``: random packets over a torus of routers in RTL, whose ejectors stall and whose
wires lose and damage frames; every flit is compared with what was sent.
"""

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np

from hdl.checks import integer
from hdl.link.format import MAX_SIDE, Direction, LinkConfig
from sim.models.chip.torus import WireFaults
from verif.hdl.link.torus import PORTS, Packets, Torus, flits_by_channel

__all__ = ["CONFIG", "PacketOutcome", "main", "send_random"]

CONFIG = LinkConfig(payload_bytes=16, depth=32, retry_cycles=256)
"""Parameters of links that are as narrow as those of a `tiny` chip would be."""
_MOST_FLITS = 4
_MOST_LATENCY = 12
_CYCLES_PER_PACKET = 1000


@dataclass(frozen=True)
class PacketOutcome:
    """What was sent and compared.

    Attributes
    ----------
    packets, flits : int
        Number of packets that were sent, and of flits that arrived.
    hops : int
        Number of times that a flit must be put on a wire, on the routes of the golden model.
    repeated : int
        Number of times that a link sent a flit again, because a wire lost or damaged a frame.
    cycles : int
        Number of cycles until the last flit arrived.
    """

    packets: int
    flits: int
    hops: int
    repeated: int
    cycles: int


def send_random(shape: tuple[int, int], count: int, seed: int, *, faults: float = 1e-4,
                accept: float = 0.7, optimise: bool | None = True) -> PacketOutcome:
    """Sends packets of 1 to 4 flits from random fabrics to random others, and checks all of them.

    Each wire has its own latency, of 1 to 12 cycles.

    Parameters
    ----------
    shape : tuple of int
        Number of fabrics along X and along Y, 1 to 32 each; there must be at least two fabrics.
    count : int
        Number of packets, at least 1.
    seed : int
        Seed of everything that is random.
    faults : float
        Probability that a wire loses a frame; also the probability that it damages one.
    accept : float
        Probability that an ejector is ready in a cycle.
    optimise : bool or None
        As in `sim.verilated.build.build_model`.

    Raises
    ------
    TypeError, ValueError
        If the shape or the count is out of range.
    AssertionError
        If a flit is missing or wrong, arrives at the wrong port, or arrives out of order.
    """
    for side in shape:
        integer("side of the torus", side, 1, MAX_SIDE)
    if shape == (1, 1):
        raise ValueError("torus must have at least two fabrics, not shape (1, 1)")
    count = integer("count", count, 1)
    rng = np.random.default_rng(seed)
    fabrics = shape[0] * shape[1]
    packets = Packets.random(rng, shape, count, _MOST_FLITS)
    torus = Torus(CONFIG, shape, rng.integers(1, _MOST_LATENCY + 1, (fabrics, PORTS)), seed,
                  optimise=optimise)
    try:
        torus.faults({(node, port): WireFaults(faults, faults)
                      for node in range(fabrics) for port in Direction})
        delivery = torus.run(packets, accept=accept, cycles=1000 + _CYCLES_PER_PACKET * count)
        down = torus.down()
        assert not down, f"links went down: {sorted(down)}"
        delivery.check()
        sent, golden = torus.sent()[1], flits_by_channel(packets, shape)
    finally:
        torus.close()
    assert (sent >= golden).all(), "flits took another way than the golden one"
    assert faults or (sent == golden).all(), "flits were repeated without a fault"
    return PacketOutcome(count, len(delivery.records), int(golden.sum()),
                         int((sent - golden).sum()), delivery.cycles)


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs=2, type=int, default=(8, 8), metavar=("X", "Y"))
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.monotonic()
    try:
        outcome = send_random(tuple(arguments.shape), arguments.count, arguments.seed)
    except (ValueError, AssertionError) as error:
        print(f"seed {arguments.seed}: {error}", file=sys.stderr)
        return 1
    print(f"{outcome.packets:,} packets of {outcome.flits:,} flits arrived, each of them once, in "
          f"order, with the bits that were sent: {outcome.hops:,} hops in {outcome.cycles:,} "
          f"cycles; {outcome.repeated:,} flits repeated; {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
