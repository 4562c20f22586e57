"""Operands for the vector unit's datapaths, and runs of their pipelines."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from amaranth.lib import wiring

from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.model import Model
from verif.hdl.simulation.simulator import fast_simulator

Words = np.ndarray[Any, Any]

CORNERS = np.array([sign | word for sign in (0, 0x80000000) for word in (
    0x00000000, 0x00000001, 0x0000001F, 0x00000020, 0x00400000, 0x007FFFFF,  # zeros; small integers
    0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x1FFFFFFF, 0x20000000,  # around 2**-126, -63
    0x33800000, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x40000000,
    0x4B7FFFFF, 0x4B800001, 0x4EFFFFFF, 0x4F000000, 0x4F000001, 0x4F7FFFFF,  # around 2**24, 2**31
    0x5F000000, 0x5F800000, 0x7EFFFFFF, 0x7F000000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF,
    0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF)], np.uint32)
"""Bit patterns that are corner cases as fp32 numbers or as integers."""

EDGE_FRACTIONS = np.array([0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x555555, 0x7FFFFE, 0x7FFFFF],
                          np.uint32)


def corner_pairs() -> tuple[Words, Words]:
    """All pairs of corners."""
    a, b = np.meshgrid(CORNERS, CORNERS)
    return a.ravel(), b.ravel()


def _words(rng: np.random.Generator, count: int) -> Words:
    return rng.integers(0, 1 << 32, count, np.uint32)


def _number(sign: Words, exponent: Words, fraction: Words) -> Words:
    """Numbers of given signs (the words' top bits), exponents clipped to 1..254, and fractions."""
    field = np.clip(exponent, 1, 254).astype(np.uint32)
    return (sign & 0x80000000) | (field << np.uint32(23)) | (fraction & 0x7FFFFF)


def _near(rng: np.random.Generator, count: int, product: float) -> tuple[Words, Words]:
    """Factors whose product differs from ``product`` by some units in the last place."""
    field = rng.integers(1, 127, count) if product < 1 else rng.integers(129, 254, count)
    a = _number(_words(rng, count), field, _words(rng, count))
    b = (product / a.view(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32)
    return a, (b + rng.integers(-3, 4, count)).astype(np.uint32) ^ (_words(rng, count)
                                                                    & 0x80000000)


def number_pairs(rng: np.random.Generator, count: int) -> tuple[Words, Words]:
    """About ``count`` pairs of fp32 patterns that reach the corner cases of + and *."""
    share = -(-count // 9)
    parts: list[tuple[Words, Words]] = [(_words(rng, share), _words(rng, share))]

    one = rng.choice(CORNERS, share)
    parts.append((one, _words(rng, share)))
    parts.append((_words(rng, share), rng.choice(CORNERS, share)))

    # Sums: all distances of exponents; fractions that carry and borrow far.
    a = _number(_words(rng, share), rng.integers(1, 255, share), _words(rng, share))
    field = (a >> 23 & 255).astype(np.int64)
    parts.append((a, _number(_words(rng, share), field + rng.integers(-30, 31, share),
                             _words(rng, share))))
    a = _number(a, field, rng.choice(EDGE_FRACTIONS, share))
    parts.append((a, _number(_words(rng, share), field + rng.integers(-27, 28, share),
                             rng.choice(EDGE_FRACTIONS, share))))
    # Sums that nearly cancel, also around the least normal number.
    low = np.where(rng.random(share) < 0.3, rng.integers(1, 26, share), field)
    a = _number(_words(rng, share), low, _words(rng, share))
    noise = (_words(rng, share) & 0x7FFFFF) >> rng.integers(0, 24, share).astype(np.uint32)
    parts.append((a, a ^ 0x80000000 ^ noise))

    # Products that are exactly half a unit off, and their neighbours.
    bits = rng.integers(2, 24, share)
    factors = []
    for width in (bits, 25 + rng.integers(0, 2, share) - bits):
        odd = (1 << (width - 1)) | rng.integers(0, 1 << 24, share) & ((1 << (width - 1)) - 1) | 1
        scale = rng.integers(-100, 60, share)
        exact = np.ldexp(odd.astype(np.float64), scale).astype(np.float32)
        factors.append(exact.view(np.uint32) ^ (_words(rng, share) & 0x80000000))
    parts.append((factors[0], factors[1] + rng.choice(np.array([0, 0, 1], np.uint32), share)))
    # Products around the tie below 2**-126, and around that below 2**128.
    parts.append(_near(rng, share, (1 - 2.0**-25) * 2.0**-126))
    parts.append(_near(rng, share, (1 - 2.0**-25) * 2.0**128))
    a, b = (np.concatenate(side) for side in zip(*parts, strict=True))
    return a, b


def integer_pairs(rng: np.random.Generator, count: int) -> tuple[Words, Words]:
    """About ``count`` pairs of integers: any size, close together, or a small second one."""
    share = -(-count // 4)
    a, b = _words(rng, 4 * share), _words(rng, 4 * share)
    a = (a.view(np.int32) >> rng.integers(0, 32, len(a))).astype(np.int32).view(np.uint32)
    b[:share] = (b[:share].view(np.int32)
                 >> rng.integers(0, 32, share)).astype(np.int32).view(np.uint32)
    b[share:2 * share] = a[share:2 * share] + (b[share:2 * share] % 5 - 2)
    b[2 * share:3 * share] %= 40
    return a, b


def model_of(module: str, make: Callable[[], wiring.Component]) -> Model:
    """A verilated model of a unit, built once."""
    return Model(build_model(module, VerilogLibrary().write(module, make), waivers=LINT_WAIVERS,
                             optimise=None))


def through(model: Model, latency: int, operands: Mapping[str, Words], output: str) -> Words:
    """The results of a pipeline that gets one set of operands in each cycle."""
    count = len(next(iter(operands.values())))
    inputs = {name: np.concatenate([words, np.zeros(latency - 1, words.dtype)])
              for name, words in operands.items()}
    model.poke("enable", (1 << latency) - 1)
    return model.run(inputs, [output])[output][latency - 1:, 0][:count]


def assert_same(what: str, seed: int, got: Words, expected: Words, **operands: Words) -> None:
    """Checks that there are elements and that all are equal; shows the first that differ."""
    assert len(got) == len(expected) > 0, f"nothing of {what} was checked"
    wrong = np.flatnonzero(got != expected)
    shown = "\n".join(
        f"  {index}: {int(got[index]):#010x}, not {int(expected[index]):#010x}; "
        + ", ".join(f"{name} {int(words[index]):#x}" for name, words in operands.items())
        for index in wrong[:8])
    assert not wrong.size, f"{what}: {wrong.size} of {len(got)} differ, seed {seed}\n{shown}"


def held(enables: Words, results: Words, latency: int) -> tuple[Words, Words]:
    """The expected outputs of a pipeline after each cycle, and whether they are known.

    If bit s of ``enables[t]`` is set, stage s takes the contents of the stage before it at the end
    of cycle t. Stage 0 takes ``results[t]``.
    """
    stages: list[int | None] = [None] * latency
    shown, known = np.zeros_like(results), np.zeros(len(results), bool)
    for cycle, (enable, result) in enumerate(zip(enables.tolist(), results.tolist(),
                                                 strict=True)):
        before = [result, *stages]
        stages = [before[stage] if enable >> stage & 1 else stages[stage]
                  for stage in range(latency)]
        if stages[-1] is not None:
            shown[cycle], known[cycle] = stages[-1], True
    return shown, known


def in_python(make: Callable[[], wiring.Component], inputs: Mapping[str, Words],
              output: str) -> Words:
    """The output after each cycle, in Amaranth's own simulator."""
    unit = make()
    cycles = len(next(iter(inputs.values())))
    seen = np.zeros(cycles, np.uint32)

    async def bench(ctx: Any) -> None:
        for cycle in range(cycles):
            for name, words in inputs.items():
                ctx.set(getattr(unit, name), int(words[cycle]))
            await ctx.tick()
            seen[cycle] = ctx.get(getattr(unit, output))

    simulator = fast_simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen
