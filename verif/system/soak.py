"""``make soak``: checks that many steps of training through JAX leak no memory and no handles."""

import argparse
import gc
import os
import pathlib
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

__all__ = ["Usage", "grown", "main", "soak"]

_RESIDENT_SLACK = 4 << 20
"""Bytes by which the process may grow, because its allocator does not return freed memory."""
_LEAST = 100
"""Number of steps after which the loss must be so low that the model clearly learns."""


@dataclass(frozen=True)
class Usage:
    """Memory and handles that the process uses.

    Attributes
    ----------
    hbm_bytes : int
        Bytes of HBM.
    arrays, programs : int
        Numbers of arrays and of programs on the chip.
    files, threads : int
        Numbers of open file descriptors and of threads.
    resident_bytes : int
        Bytes of the host's memory.
    """

    hbm_bytes: int
    arrays: int
    programs: int
    files: int
    threads: int
    resident_bytes: int


def grown(before: Usage, after: Usage) -> dict[str, tuple[int, int]]:
    """The attributes that have grown: for each name, the value before and the value after."""
    slack = {"resident_bytes": _RESIDENT_SLACK}
    later = asdict(after)
    return {name: (value, later[name]) for name, value in asdict(before).items()
            if later[name] > value + slack.get(name, 0)}


def soak(steps: int, warm: int) -> tuple[Usage, Usage]:
    """Train; return the usage after the first ``warm`` steps and after all steps.

    JAX must have the chip as its platform.
    """
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ w - y) ** 2)

    @jax.jit
    def step(w: Any, v: Any, x: Any, y: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(w, x, y)
        v = 0.9 * v + slope
        return w - 0.02 * v, v, value

    random = np.random.default_rng(0)
    right = random.standard_normal((4, 2)).astype(np.float32)
    w, v = jnp.zeros((4, 2)), jnp.zeros((4, 2))
    before, first, value = None, None, None
    for number in tqdm(range(steps), "steps", unit="step", leave=False):
        if number == warm:
            before = _usage()
        # Each step has a batch from the host, and its loss goes there.
        x = random.standard_normal((8, 4)).astype(np.float32)
        w, v, value = step(w, v, x, x @ right)
        value = float(value)
        first = value if first is None else first
    assert before is not None
    assert value is not None
    assert first is not None
    if not value < 1e-3 * first:
        raise RuntimeError(f"the loss must fall, not go from {first} to {value}")
    return before, _usage()


def _usage() -> Usage:
    import jax

    from sim.pjrt.platform import Worker

    gc.collect()
    # What has been asked for before this array is done when it is ready.
    last = jax.device_put(np.float32(0))
    last.block_until_ready()
    [worker] = [item for item in gc.get_objects() if isinstance(item, Worker)]
    arrays, programs = worker.chips.sizes
    process = pathlib.Path("/proc/self")
    pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    return Usage(jax.devices()[0].memory_stats()["bytes_in_use"], arrays, programs,
                 len([*(process / "fd").iterdir()]), threading.active_count(),
                 pages * os.sysconf("SC_PAGE_SIZE"))


def main() -> int:
    """Run the command; return the exit status: 1 if something has grown."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="tiny")
    parser.add_argument("--backend", choices=("golden", "rtl"), default="golden")
    parser.add_argument("--count", type=int, default=10_000, help="steps")
    arguments = parser.parse_args()
    if arguments.count < _LEAST:
        parser.error(f"--count must be at least {_LEAST}, not {arguments.count}")
    os.environ |= {"JAX_PLATFORMS": "systolith", "SYSTOLITH_CONFIG": arguments.config,
                   "SYSTOLITH_BACKEND": arguments.backend}
    before, after = soak(arguments.count, arguments.count // 5)
    print(f"after {arguments.count // 5:,} steps: {before}\nafter {arguments.count:,}: {after}")
    found = grown(before, after)
    for name, (old, new) in found.items():
        print(f"{name} grew from {old:,} to {new:,}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
