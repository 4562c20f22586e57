"""The SDRAM of the simulated board is the golden one: the same words, the same violations."""

import random
from collections import Counter

import numpy as np
import pytest

from golden.fpga.sdram import Edge, GoldenSdram, Rule
from hdl.fpga.sdram import Command
from hdl.lint import LINT_WAIVERS
from sim.verilated.build import build_model
from sim.verilated.model import Model
from tools.fpga.board import SDRAM_SOURCE

PERIOD_PS, START_US, ROW_BITS = 10_000, 1, 2
ALL = 1 << 10
START = [*[(Edge(Command.NOP), 1)] * (1000 * START_US * 1000 // PERIOD_PS),
         (Edge(Command.PRECHARGE, address=ALL), 3), *[(Edge(Command.REFRESH), 7)] * 8,
         (Edge(Command.MODE, address=0x20), 2)]
"""Commands of the SDRAM's start, each with the number of clock edges to the next command."""


class Traffic:
    """Random commands to a golden SDRAM, most of them legal, until one violates a rule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.golden = GoldenSdram(PERIOD_PS, START_US)
        self.edges: list[Edge] = []
        self.found: list[int | None] = []
        self.rule = Rule.NONE
        self.rows: dict[int, int] = {}

    def send(self, edge: Edge, gap: int) -> None:
        """Sends a command, and then NOPs up to the next command."""
        for now in (edge, *[Edge()] * (gap - 1)):
            if not self.rule:
                out, self.rule = self.golden.edge(now)
                self.edges.append(now)
                self.found.append(out)

    def start(self) -> None:
        """Sends the commands of the start, sometimes with a mistake."""
        steps = list(START)
        mistake = self.rng.randrange(20)
        if mistake == 0:
            del steps[self.rng.choice((0, -1, -2, -10))]
        elif mistake == 1:
            steps[-1] = Edge(Command.MODE, address=self.rng.choice((0x21, 0x28, 0x30))), 2
        elif mistake == 2:
            steps[-3] = steps[-3][0], self.rng.randint(1, 6)
        elif mistake == 3:
            steps[-10] = steps[-10][0], 2
        elif mistake == 4:
            steps[-1] = steps[-1][0], 1
        for edge, gap in steps:
            self.send(edge, gap)

    def step(self) -> None:
        """Sends a command to a random bank; delays before it are mostly long enough."""
        rng, bank = self.rng, self.rng.randrange(4)
        gap = 8 if rng.randrange(8) else rng.randint(1, 7)
        choice = rng.randrange(100)
        if choice == 0:
            self.mistake(bank)
        elif choice == 1:
            self.send(Edge(), 2500)
        elif choice < 10:
            self.send(Edge(Command.PRECHARGE, address=ALL), gap)
            self.rows.clear()
            self.send(Edge(Command.REFRESH), gap)
        elif bank not in self.rows and choice < 90:
            self.rows[bank] = rng.randrange(3)
            self.send(Edge(Command.ACTIVATE, bank, self.rows[bank]), gap)
        elif choice < 70:
            self.send(Edge(Command.WRITE if choice % 2 else Command.READ, bank, rng.randrange(4),
                           rng.randrange(4), rng.getrandbits(16) if choice % 2 else None), gap)
        else:
            self.rows.pop(bank, None)
            self.send(Edge(Command.PRECHARGE, bank), gap)

    def mistake(self, bank: int) -> None:
        """Sends commands that are illegal in most states."""
        precharge, activate = Edge(Command.PRECHARGE, bank), Edge(Command.ACTIVATE, bank)
        read, write = Edge(Command.READ, bank), Edge(Command.WRITE, bank, data=1)
        for edge, gap in self.rng.choice((
                [(Edge(enable=0), 1)], [(Edge(6), 1)], [(Edge(Command.READ, bank, ALL), 1)],
                [(activate, 8)] * 2, [(Edge(Command.REFRESH), 8)], [(precharge, 8), (read, 8)],
                [(precharge, 8), (activate, 8), (write, 1), (precharge, 8)],
                [(precharge, 8), (activate, 1), (read, 1)], [(Edge(Command.WRITE, bank), 1)],
                [(precharge, 8), (activate, 8), (read, 2), (write, 1)], [(Edge(), 10_050)])):
            self.send(edge, gap)


@pytest.mark.slow
def test_simulated_sdram_is_the_golden_one() -> None:
    text = SDRAM_SOURCE.read_text()
    # Few rows: to write random words into all 32 MiB at each power-on would take most of the time.
    for name, at_board, here in (("PERIOD_PS", 40_000, PERIOD_PS), ("START_US", 200, START_US),
                                 ("ROW_BITS", 13, ROW_BITS)):
        old = f"parameter {name} = {at_board}"
        assert old in text
        text = text.replace(old, f"parameter {name} = {here}")
    library = build_model("sdram", {"sdram": text}, waivers=LINT_WAIVERS, optimise=None)
    rules: Counter[Rule] = Counter()
    words = 0
    for seed in range(120):
        traffic = Traffic(seed)
        traffic.start()
        for _ in range(100):
            traffic.step()
        rules[traffic.rule] += 1
        edges = traffic.edges
        with Model(library) as model:
            out = model.run(
                {**{name: np.array([getattr(edge, name) for edge in edges], np.uint32)
                    for name in ("enable", "command", "bank", "address", "mask")},
                 "data": np.array([edge.data or 0 for edge in edges], np.uint32),
                 "drive": np.array([edge.data is not None for edge in edges], np.uint32)},
                ["bus"])["bus"].reshape(-1).tolist()
            assert model.peek("violation") == traffic.rule, seed
        expected = [0xDEAD if word is None else word for word in traffic.found]
        assert out == expected, seed
        words += sum(word not in (None, 0, 0xDEAD) for word in traffic.found)
    assert set(rules) == set(Rule), set(Rule) - set(rules)
    assert words > 100
