"""Traces and waveforms show what happened, and change nothing."""

import itertools
import json
import pathlib
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from vcd.reader import TokenKind, tokenize

from hdl.config import Config
from hdl.core.counters import COUNTERS
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.models.chip import ChipModel, chip_library
from sim.trace.summary import main, summary
from sim.trace.tracer import Tracer
from systolith import CoreFaultError, Device

TINY = Config.preset("tiny")
SEED = 11
SIZE = 17, 13, 22
COUNTER_NAMES = {name.removesuffix("_cycles").replace("_", " "): name for name in COUNTERS}

Product = tuple[pathlib.Path, pathlib.Path, NDArray[np.float32], list[dict[str, int]],
                tuple[int, int]]
"""Trace and waveforms of a product, its result, the counters, and cycles before and after."""
Slice = tuple[tuple[str, str], dict[str, Any]]
"""Names of process and thread, and the event."""


class Trace:
    """A trace's events by track."""

    def __init__(self, path: pathlib.Path) -> None:
        self.everything = json.loads(path.read_text())
        self.events = self.everything["traceEvents"]
        self.processes = {event["pid"]: event["args"]["name"] for event in self.events
                          if event["name"] == "process_name"}
        self.threads = {(event["pid"], event["tid"]): event["args"]["name"]
                        for event in self.events if event["name"] == "thread_name"}
        self.tracks = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                self.tracks[self.where(event)].append(event)

    def where(self, event: Mapping[str, Any]) -> tuple[str, str]:
        return self.processes[event["pid"]], self.threads[event["pid"], event["tid"]]

    def cycles(self, core: int, track: str) -> Counter[str]:
        """Cycles by name of the slices of a track."""
        result: Counter[str] = Counter()
        for event in self.tracks[f"core {core}", track]:
            result[event["name"]] += event["dur"]
        return result

    def arrows(self) -> Iterator[tuple[str, Slice, Slice]]:
        """Each arrow's name, the slice in which it begins, and the slice in which it ends."""
        starts = {event["id"]: event for event in self.events if event["ph"] == "s"}
        ends = {event["id"]: event for event in self.events if event["ph"] == "f"}
        assert starts.keys() == ends.keys()
        assert len(starts) == sum(event["ph"] in "sf" for event in self.events) / 2
        for number, start in starts.items():
            end = ends[number]
            assert start["name"] == end["name"]
            assert start["ts"] <= end["ts"]
            yield start["name"], self.slice(start), self.slice(end)

    def slice(self, flow: Mapping[str, float | str]) -> Slice:
        (found,) = [event for event in self.tracks[self.where(flow)]
                    if event["ts"] <= flow["ts"] < event["ts"] + event["dur"]]
        return self.where(flow), found


class Waves:
    """A waveform: signals by full name, and the changes of each, in cycles."""

    def __init__(self, path: pathlib.Path) -> None:
        self.codes, self.widths, scope = {}, {}, []
        self.changes = defaultdict(list)
        now = 0
        with path.open("rb") as file:
            for token in tokenize(file):
                if token.kind is TokenKind.TIMESCALE:
                    assert str(token.timescale) == "100 ns"
                elif token.kind is TokenKind.SCOPE:
                    scope.append(token.scope.ident)
                elif token.kind is TokenKind.UPSCOPE:
                    scope.pop()
                elif token.kind is TokenKind.VAR:
                    name = ".".join([*scope, token.var.reference])
                    self.codes[name], self.widths[name] = token.var.id_code, token.var.size
                elif token.kind is TokenKind.CHANGE_TIME:
                    now = token.time_change
                elif token.kind is TokenKind.CHANGE_SCALAR:
                    bit = token.scalar_change
                    self.changes[bit.id_code].append((now / 10, int(bit.value)))
                elif token.kind is TokenKind.CHANGE_VECTOR:
                    word = token.vector_change
                    self.changes[word.id_code].append((now / 10, int(word.value)))
        self.end = now / 10

    def settled(self, name: str) -> NDArray[np.int64]:
        """A signal's value in each cycle, just before the cycle's end."""
        result = np.zeros(int(self.end), np.int64)
        for at, value in self[name]:
            result[int(np.ceil(at - 0.5)):] = value
        return result

    def __getitem__(self, name: str) -> list[tuple[float, int]]:
        return self.changes[self.codes[name]]


def chip_of(device: Device) -> ChipModel:
    assert device.model is not None
    return device.model


def operands() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(SEED)
    rows, depth, columns = SIZE
    return (rng.standard_normal((rows, depth)).astype(np.float32),
            rng.standard_normal((depth, columns)).astype(np.float32))


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Product:
    """A traced product, with the cycles before and after the counters were read."""
    path = tmp_path_factory.mktemp("trace") / "product"
    with Device.open("tiny", trace=path) as device:
        result = device.matmul(*operands())
        first = chip_of(device).cycle
        counters = [device.counters(core) for core in range(2)]
        last = chip_of(device).cycle
    return path.with_suffix(".json"), path.with_suffix(".vcd"), result, counters, (first, last)


@pytest.fixture(scope="module")
def trace(product: Product) -> Trace:
    return Trace(product[0])


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Waves]:
    """Trace and waveform of a short program on core 0."""
    path = tmp_path_factory.mktemp("trace") / "short"
    with Device.open("tiny", trace=path) as device:
        device.run({0: assemble(SHORT, TINY)}, cycles=1000)
    return Trace(path.with_suffix(".json")), Waves(path.with_suffix(".vcd"))


def test_events_have_what_viewers_need(trace: Trace) -> None:
    assert {event["ph"] for event in trace.events} == {"M", "X", "s", "f"}
    for event in trace.events:
        assert {"ph", "pid", "name"} <= event.keys()
        if event["ph"] != "M":
            assert (event["pid"], event["tid"]) in trace.threads
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["name"]
    assert set(trace.processes.values()) == {"core 0", "core 1", "host"}
    assert trace.everything["otherData"]["cores"] == 2


def test_slices_of_a_track_do_not_overlap(trace: Trace) -> None:
    assert len(trace.tracks) > 30
    for track, slices in trace.tracks.items():
        order = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices)
        for (_, end), (begin, _) in itertools.pairwise(order):
            assert end <= begin, track


@pytest.mark.parametrize("core", [0, 1])
def test_every_cycle_is_charged_as_the_counters_do(product: Product, trace: Trace,
                                                   core: int) -> None:
    _, _, _, counters, (first, last) = product
    cycles = trace.cycles(core, "cycles")
    assert cycles.keys() <= COUNTER_NAMES.keys()
    assert len(COUNTER_NAMES) == len(COUNTERS)
    for name, counter in COUNTER_NAMES.items():
        if name != "idle":
            assert cycles[name] == counters[core][counter] > 0, name
    # The core is idle while its counters are read, one by one, and until the end.
    assert counters[core]["idle_cycles"] <= cycles["idle"]
    assert cycles["idle"] <= counters[core]["idle_cycles"] + last - first


def test_units_are_as_busy_as_they_were(product: Product, trace: Trace) -> None:
    array = TINY.array
    for core in range(2):
        counters = product[3][core]
        rows = sum(trace.cycles(core, "array: rows").values())
        assert rows == counters["mxu_active_cycles"]
        assert sum(trace.cycles(core, "array: results").values()) == rows
        weights = sum(trace.cycles(core, "array: weights").values())
        assert weights >= counters["weight_load_cycles"]
        swaps = trace.cycles(core, "array: rows").keys()
        assert swaps >= {"rows, new weights"}
        assert weights % array == 0
        begun = [event for event in trace.tracks[f"core {core}", "array: rows"]
                 if event["name"] == "rows, new weights"]
        assert len(begun) == weights // array
        for event in trace.tracks[f"core {core}", "array: rows"]:
            assert event["args"]["rows"] == event["dur"]


def test_transfers_carry_the_rows_of_the_operands(trace: Trace) -> None:
    for core in range(2):
        transfers = [event for place in range(4)
                     for event in trace.tracks[f"core {core}", f"DMA: transfer {place}"]]
        assert transfers
        rows = sum(event["args"]["rows"] for event in transfers)
        for track in ("DMA: rows in", "DMA: rows out"):
            assert sum(trace.cycles(core, track).values()) == rows
        kinds = Counter(event["name"].split(",")[0] for event in transfers)
        assert kinds["HBM to VMEM"] > 0
        assert kinds["VMEM to HBM"] > 0
        assert all("ended" not in event["args"] for event in transfers)
        assert {event["args"]["started by"] for event in transfers} == {"program", "host"}


def test_arrows_lead_from_transfers_to_the_waits_that_they_release(trace: Trace) -> None:
    arrows = list(trace.arrows())
    transfers = 0
    for name, ((origin, track), begun), ((core, waits), wait) in arrows:
        assert origin == core
        assert waits == "semaphores"
        assert wait["name"] == f"wait for {name}"
        assert begun["ts"] + begun["dur"] < wait["ts"] + wait["dur"]
        if begun["name"] != "signal":
            assert track.startswith("DMA: transfer ")
            assert name in begun["args"]["adds to"]
            transfers += 1
    assert transfers > 4
    waited = [event for core in range(2) for event in trace.tracks[f"core {core}", "semaphores"]]
    assert len(arrows) == sum(event["args"]["amount"] > 0 for event in waited)


def test_waveform_shows_control_at_the_cycles_of_the_trace(short: tuple[Trace, Waves]) -> None:
    trace, waves = short
    clock = waves["TOP.clk"]
    assert waves.end == int(waves.end)
    assert [at for at, level in clock if level] == list(range(1, int(waves.end) + 1))
    assert [at for at, level in clock if not level] == [n + 0.5 for n in range(int(waves.end))]
    core = "TOP.chip.node_0.core"
    accepted, issue, pc = (waves.settled(f"{core}.{name}") for name in (
        "counters.x_accepted", "sequencer.issue", "sequencer.pc"))
    rows = np.zeros(len(accepted), bool)
    for event in trace.tracks["core 0", "array: rows"]:
        rows[event["ts"]:event["ts"] + event["dur"]] = True
    assert rows.sum() == 4 * TINY.sublanes
    np.testing.assert_array_equal(accepted, rows)
    issued = pc[issue != 0].tolist()
    assert issued == [0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 6, 7, 8]
    shown: list[int] = []
    for event in sorted(trace.tracks["core 0", "program"], key=lambda event: event["ts"]):
        bounds = event["name"].split(" to ")
        if "waits" not in event["name"]:
            shown += range(int(bounds[0]), int(bounds[-1]) + 1)
    assert shown == issued


def test_waveform_has_no_data_words(short: tuple[Trace, Waves]) -> None:
    waves = short[1]
    assert max(waves.widths.values()) < 64
    for name in waves.codes:
        for grid in (".grid.", ".lanes.", ".nodes.", ".banks.", ".probes."):
            assert grid not in name
        assert "$" not in name
    assert any(name.endswith("core.sequencer.pc") for name in waves.codes)


def test_tracing_changes_no_result_and_no_cycle(product: Product) -> None:
    with Device.open("tiny") as device:
        plain = device.matmul(*operands())
        assert chip_of(device).cycle == product[4][0]
        assert [device.counters(core) for core in range(2)] == product[3]
    assert np.array_equal(plain.view(np.uint32), product[2].view(np.uint32))


def test_summary_adds_up(product: Product, trace: Trace, capsys: pytest.CaptureFixture[str],
                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["trace_summary", str(product[0])])
    assert main() == 0
    text = capsys.readouterr().out
    assert text == summary(product[0]) + "\n"
    rows = [line.split() for line in text.splitlines() if line.startswith("  mxu active")]
    assert [int(row[2].replace(",", "")) for row in rows] == [
        counters["mxu_active_cycles"] for counters in product[3]]


SHORT = ("{ ld.load v1, s0 | s0.add s1, s0, 3 } { push.weights v1 } { push.weights v1 }"
         "{ push.rows_swap v1 } again: { push.rows v1 | v0.fadd v2, v1, 1.0f }"
         "{ s1.loop s1, again } { pop.pop v3 } { v1.fmul v4, v3, v3 } { s1.halt }")
HANDSHAKE = ("{ s0.add s1, s0, 20 } again: { s1.loop s1, again }"
             "{ misc.signal_other sem4, 2 } { misc.wait sem5, 1 } { misc.signal sem6, 3 }"
             "{ misc.wait sem6, 3 } { misc.wait sem7, 1 } { s1.halt }",
             "{ misc.wait sem4, 2 } { s0.add s1, s0, 9 } again: { s1.loop s1, again }"
             "{ misc.signal_other sem5, 1 } { s1.halt }")


def test_arrows_between_cores_from_the_program_and_from_the_host(tmp_path: pathlib.Path) -> None:
    with Device.open("tiny", trace=tmp_path / "handshake.json") as device:
        for core in (1, 0):
            device.load(core, assemble(HANDSHAKE[core], TINY))
            device.start(core)
        chip_of(device).run(500, until="never")
        device.signal(0, 7)
        device.wait(cycles=1000)
    trace = Trace(tmp_path / "handshake.json")
    found = {name: (begun[0], begun[1]["name"], ended[0], ended[1]["dur"])
             for name, begun, ended in trace.arrows()}
    assert {name: entry[:3] for name, entry in found.items()} == {
        "semaphore 4": (("core 0", "slot misc"), "signal_other", ("core 1", "semaphores")),
        "semaphore 5": (("core 1", "slot misc"), "signal_other", ("core 0", "semaphores")),
        "semaphore 6": (("core 0", "slot misc"), "signal", ("core 0", "semaphores")),
        "semaphore 7": (("host", "semaphores"), "core 0 semaphore 7 + 1",
                        ("core 0", "semaphores"))}
    assert found["semaphore 4"][3] > 20
    assert found["semaphore 5"][3] > 9
    assert found["semaphore 6"][3] == 1
    assert found["semaphore 7"][3] > 400
    program = [event["name"] for event in trace.tracks["core 0", "program"]]
    assert program[:3] == ["0", "1", "2"] or "0 to 1" in program
    held = [event for event in trace.tracks["core 0", "program"]
            if event["name"] == "6 waits for semaphore"]
    assert [event["args"]["bundle"] for event in held] == ["{ misc.wait sem7, 1 }"]
    assert sum(event["dur"] for event in held) == found["semaphore 7"][3] - 1


def test_files_are_whole_after_a_fault_and_in_the_middle_of_a_transfer(
        tmp_path: pathlib.Path) -> None:
    device = Device.open("tiny", trace=tmp_path / "fault")
    device.load(0, assemble("{ ld.load v1, s0, 100000 }", TINY))
    device.start(0)
    with pytest.raises(CoreFaultError):
        device.wait(cycles=1000)
    chip_of(device).start_transfer(1, descriptor(TINY, hbm(0), vmem(0), rows=512, semaphore=sem[3]))
    chip_of(device).run(100, until="never")
    device.close()
    device.close()
    trace = Trace(tmp_path / "fault.json")
    (fault,) = [event for event in trace.events if event["ph"] == "i"]
    assert (fault["name"], fault["args"]) == ("fault VMEM_RANGE", {"at": 0})
    (transfer,) = [event for event in trace.tracks["core 1", "DMA: transfer 0"]
                   if event["args"]["rows"] == 512]
    assert transfer["args"]["ended"] == "continues after the trace"
    assert transfer["args"]["adds to"] == "semaphore 3 of this core"
    assert Waves(tmp_path / "fault.vcd").end > 100


def test_a_reset_ends_transfers_and_forgets_semaphores(tmp_path: pathlib.Path) -> None:
    with ChipModel(TINY, trace=tmp_path / "reset") as chip:
        chip.write("SEMAPHORE_ADD", core=0, INDEX=3, AMOUNT=5)
        chip.start_transfer(0, descriptor(TINY, hbm(0), vmem(0), rows=400))
        chip.reset_core(0)
        chip.load_program(0, assemble("{ misc.wait sem3, 1 } { s1.halt }", TINY).bundles)
        chip.start(0)
        chip.run(100, until="never")
        assert chip.waiting(0)
        chip.write("SEMAPHORE_ADD", core=0, INDEX=3, AMOUNT=1)
        chip.run(1000)
    trace = Trace(tmp_path / "reset.json")
    transfers = trace.tracks["core 0", "DMA: transfer 0"]
    assert transfers[0]["args"]["ended"] == "given up"
    ((_, (_, begun), _),) = trace.arrows()
    assert begun["name"] == "core 0 semaphore 3 + 1"


def test_an_interrupt_leaves_no_half_of_a_step(tmp_path: pathlib.Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.trace.recording.RECORDED_WORDS", -1)
    feed, interrupts = Tracer.feed, itertools.count()

    def interrupted(self: Tracer, records: Sequence[np.ndarray], now: int) -> None:
        if next(interrupts) == 3:
            signal.raise_signal(signal.SIGINT)
        feed(self, records, now)

    monkeypatch.setattr(Tracer, "feed", interrupted)
    with Device.open("tiny", trace=tmp_path / "stopped") as device:
        chip = chip_of(device)
        with pytest.raises(KeyboardInterrupt):
            chip.run(1_000_000, until="never")
        assert 0 < chip.cycle < 1_000_000
        chip.run(100, until="never")
        end = chip.cycle
    assert next(interrupts) > 4
    trace = Trace(tmp_path / "stopped.json")
    for core in range(2):
        slices = trace.tracks[f"core {core}", "cycles"]
        assert all(before["ts"] + before["dur"] == after["ts"]
                   for before, after in itertools.pairwise(slices))
        assert slices[-1]["ts"] + slices[-1]["dur"] == end


def test_records_in_parts_give_the_same_trace(tmp_path: pathlib.Path, product: Product,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.trace.recording.RECORDED_WORDS", 100)
    with Device.open("tiny", trace=tmp_path / "parts") as device:
        device.matmul(*operands())
        assert [device.counters(core) for core in range(2)] == product[3]
    parts, whole = Trace(tmp_path / "parts.json"), Trace(product[0])
    for track, slices in whole.tracks.items():
        if track[1] != "program":  # a slice of a bundle that issues in many cycles may be cut
            key = lambda event: event["ts"]  # noqa: E731
            assert sorted(parts.tracks[track], key=key) == sorted(slices, key=key), track
    assert len(list(parts.arrows())) == len(list(whole.arrows()))


def test_what_cannot_be_traced_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="trace must be None for the golden backend"):
        Device.open("tiny", backend="golden", trace=tmp_path / "x")
    number: Any = 5
    with pytest.raises(TypeError, match="trace must be a path, not 5"):
        Device.open("tiny", trace=number)
    with pytest.raises(FileNotFoundError, match="trace must lie in a folder that exists, not"):
        Device.open("tiny", trace=tmp_path / "none" / "x")
    with pytest.raises(ValueError, match="trace must be a path that ends in a file name"):
        Device.open("tiny", trace=tmp_path)
    with pytest.raises(ValueError, match="kernels must be True for a trace"):
        chip_library(TINY, kernels=False, trace=True)
    (tmp_path / "taken.vcd").mkdir()
    with pytest.raises(IsADirectoryError):
        Device.open("tiny", trace=tmp_path / "taken")
    json.loads((tmp_path / "taken.json").read_text())


def test_files_are_whole_if_nobody_closes_the_device(tmp_path: pathlib.Path) -> None:
    chip_library(TINY, trace=True)  # built here, not within the other process's time limit
    code = (f"from systolith import Device; import numpy as np\n"
            f"d = Device.open('tiny', trace={str(tmp_path / 'left')!r})\n"
            f"d.matmul(np.ones((9, 5), np.float32), np.ones((5, 7), np.float32))\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    trace = Trace(tmp_path / "left.json")
    assert trace.tracks["core 0", "array: rows"]
    assert (tmp_path / "left.vcd").read_text().rstrip().splitlines()[-1]


def test_two_devices_do_not_write_the_same_trace(tmp_path: pathlib.Path) -> None:
    with Device.open(TINY, trace=tmp_path / "same") as device:
        with pytest.raises(ValueError, match=r"path that no other device writes to, not '.*same"):
            Device.open(TINY, trace=tmp_path / "same.vcd")
        device.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
    assert Trace(tmp_path / "same.json").tracks["core 0", "array: rows"]
    Device.open(TINY, trace=tmp_path / "same").close()
