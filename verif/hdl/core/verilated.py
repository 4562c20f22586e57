"""Drives a verilated model of the sequencer, as its host, with a `SequencerChecker`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from hdl.config import Config
from hdl.core.interface import Space, descriptor_words
from hdl.core.sequencer import Sequencer
from hdl.encoding import bundle_words
from hdl.isa import SEMAPHORES, Fault
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model
from verif.models.sequencer import SequencerChecker, UnitTiming
from verif.models.sequencer_oracle import WORD, Oracle
from verif.models.sequencer_programs import CONFIG

__all__ = ["VerilatedSequencer", "open_sequencer"]


def open_sequencer(config: Config = CONFIG) -> Model:
    sources = cached_json("sequencer", asdict(config),
                          lambda: VerilogLibrary().write("sequencer", lambda: Sequencer(config)))
    return Model(build_model("sequencer", sources, waivers=LINT_WAIVERS, optimise=None))


class VerilatedSequencer:
    """Connects a model's pins to a `SequencerChecker`, and acts as the sequencer's host.

    Attributes
    ----------
    checker : SequencerChecker
    """

    def __init__(self, model: Model, config: Config = CONFIG, timing: UnitTiming | None = None,
                 seed: int = 0) -> None:
        self.model = model
        self.config = config
        self.checker = SequencerChecker(seed, timing, config.issue_cycles > 1,
                                        descriptor_words(config))
        self._poked: dict[str, int] = {}
        model.reset()
        for name, port in model.ports.items():
            if port.is_input and name not in ("clk", "rst"):
                self.poke(name, 0)

    def poke(self, name: str, value: int) -> None:
        if self._poked.get(name) != value:
            self.model.poke(name, value)
            self._poked[name] = value

    def peek(self, name: str) -> int:
        return self.model.peek(name)

    def cycle(self) -> None:
        """Runs a clock cycle, with everything that the units do in it."""
        now = self.model.cycle
        for name, value in self.checker.inputs(now).items():
            self.poke(name, value)
        self.checker.end(now, self.peek)
        self.model.tick()

    def request(self, write: bool, space: Space, address: int, data: int = 0) -> tuple[int, bool]:
        """Makes a request of the host; returns the response's data, and whether it is an error."""
        payload = self.model.ports["request__payload"]
        assert payload.width == 1 + 2 + 20 + 32
        self.poke("request__payload", write | space.value << 1 | address << 3 | data << 23)
        self.poke("request__valid", 1)
        for _ in range(10):
            ready = self.peek("request__ready")
            self.cycle()
            if ready:
                break
        else:
            raise AssertionError("the request was not accepted")
        self.poke("request__valid", 0)
        assert self.peek("response__valid")
        return self.peek("response__data"), bool(self.peek("response__error"))

    def write(self, space: Space, address: int, data: int) -> None:
        _, error = self.request(True, space, address, data)
        assert not error, f"the write of {space.name} {address} is answered with an error"

    def read(self, space: Space, address: int) -> int:
        data, error = self.request(False, space, address)
        assert not error, f"the read of {space.name} {address} is answered with an error"
        return data

    def write_all(self, values: Mapping[tuple[Space, int], int]) -> None:
        """Makes many writes, one a cycle; fast while the sequencer and the units are idle."""
        if self.peek("running") or not self.checker.units.idle:
            for (space, address), value in values.items():
                self.write(space, address, value)
            return
        for name, value in self.checker.units.inputs(self.model.cycle).items():
            self.poke(name, 0 if name.endswith("valid") else value)
        payloads = np.array([(payload & WORD, payload >> 32) for payload in (
            1 | space.value << 1 | address << 3 | value << 23
            for (space, address), value in values.items())], np.uint32)
        self.poke("request__valid", 1)
        got = self.model.run({"request__payload": payloads},
                             ["response__valid", "response__error"])
        places = list(values)
        for missing in np.flatnonzero(~got["response__valid"].astype(bool)):
            raise AssertionError(f"the write of {places[missing]} is not answered")
        for refused in np.flatnonzero(got["response__error"]):
            raise AssertionError(f"the write of {places[refused]} is answered with an error")
        self._poked.pop("request__payload", None)
        self.poke("request__valid", 0)

    def load(self, program: Sequence[int], at: int = 0) -> None:
        self.checker.program |= {at + number: code for number, code in enumerate(program)}
        self.write_all({(Space.IMEM, (at + number) * 16 + word): value
                        for number, code in enumerate(program)
                        for word, value in enumerate(bundle_words(code))})

    def set_state(self, oracle: Oracle) -> None:
        self.write_all({(space, address): value for space, values in self._spaces(oracle)
                        for address, value in enumerate(values)})

    def check_state(self, oracle: Oracle) -> None:
        """Compares memories, registers, transfers, signals, pc and fault with the oracle's."""
        for space, values in self._spaces(oracle):
            found = [self.read(space, address) for address in range(len(values))]
            for address, (got, want) in enumerate(zip(found, values, strict=True)):
                assert got == want, f"{space.name} {address} is {got:#x}, not {want:#x}"
        for what, done, wanted in (
                ("transfers", self.checker.outside.transfers, oracle.transfers),
                ("signals to the other core", self.checker.outside.signals, oracle.signals)):
            assert done == wanted, f"{what} are {done}, not {wanted}"
        got_pc, got_fault = self.peek("pc"), Fault(self.peek("fault"))
        assert got_pc == oracle.pc, f"pc is {got_pc}, not {oracle.pc}"
        assert got_fault == oracle.fault, f"fault is {got_fault!r}, not {oracle.fault!r}"

    @staticmethod
    def _spaces(oracle: Oracle) -> tuple[tuple[Space, list[int]], ...]:
        assert len(oracle.semaphores) == SEMAPHORES
        return ((Space.SMEM, oracle.smem), (Space.SCALAR, oracle.scalars),
                (Space.SEMAPHORE, oracle.semaphores))

    def start(self, pc: int = 0) -> None:
        self.poke("start", 1)
        self.poke("start_pc", pc)
        self.cycle()
        self.poke("start", 0)

    def run(self, pc: int = 0, limit: int = 2000) -> list[int]:
        """Runs until core and units are at rest; returns the addresses of executed bundles."""
        before = len(self.checker.issued)
        self.start(pc)
        self.finish(limit)
        return [pc for _, pc in self.checker.issued[before:]]

    def finish(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.peek("running") and self.checker.units.idle:
                break
            self.cycle()
        else:
            raise AssertionError(f"still running at {self.peek('pc')}")
        self.cycle()  # a scalar load of the last bundle
        assert not self.peek("busy"), "the sequencer is busy although nothing is under way"
        self.checker.expect_done()
