import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sim.verilated.build import build_model
from sim.verilated.model import Model, Port

WIDTHS = (1, 8, 16, 32, 33, 64, 65, 4096)
SEED = 20


def wide_source() -> str:
    """Verilog in which, for each width w, register q<w> takes d<w>, and n<w> is its complement."""
    ports = ["input clk", "input rst"]
    lines = []
    for w in WIDTHS:
        ports += [f"input [{w - 1}:0] d{w}", f"output reg [{w - 1}:0] q{w}",
                  f"output [{w - 1}:0] n{w}"]
        lines += [f"  always @(posedge clk) q{w} <= rst ? {w}'d0 : d{w};",
                  f"  assign n{w} = ~d{w};"]
    return f"module wide({', '.join(ports)});\n" + "\n".join(lines) + "\nendmodule\n"


STOPPER = """\
module stopper(input clk, input [1:0] action, output reg [7:0] count);
  always @(posedge clk) begin
    count <= count + 8'd1;
    if (action == 2'd1) $finish;
    if (action == 2'd2) $fatal(1, "bad action");
  end
endmodule
"""

NAMES = """\
module names(input clk, input a__b, input _lead__, input \\weird.name , input [6:1] \\a[3] ,
             output reg y);
  always @(posedge clk) y <= ^{a__b, _lead__, \\weird.name , \\a[3] };
endmodule
"""


@pytest.fixture(scope="module")
def wide_path() -> pathlib.Path:
    return build_model("wide", {"wide": wide_source()}, optimise=None)


@pytest.fixture(scope="module")
def stopper_path() -> pathlib.Path:
    return build_model("stopper", {"stopper": STOPPER}, optimise=None)


@pytest.fixture
def wide(wide_path: pathlib.Path) -> Iterator[Model]:
    with Model(wide_path) as model:
        yield model


@pytest.fixture
def stopper(stopper_path: pathlib.Path) -> Iterator[Model]:
    with Model(stopper_path) as model:
        yield model


def values(width: int) -> list[int]:
    """Corners and random values of ``width`` bits."""
    rng = np.random.default_rng(SEED + width)
    top = (1 << width) - 1
    some = [int.from_bytes(rng.bytes(-(-width // 8)), "little") & top for _ in range(5)]
    return [0, 1, top, 1 << (width - 1), *some]


def words_of(value: int, width: int) -> NDArray[np.uint32]:
    count = -(-width // 32)
    return np.frombuffer(value.to_bytes(4 * count, "little"), np.uint32)


def random_rows(width: int, cycles: int, seed: int) -> NDArray[np.uint32]:
    words = np.random.default_rng(seed).integers(0, 1 << 32, (cycles, -(-width // 32)),
                                                 dtype=np.uint32)
    if width % 32:
        words[:, -1] &= np.uint32((1 << width % 32) - 1)
    return words


@pytest.mark.parametrize("width", WIDTHS)
def test_value_survives_a_cycle(wide: Model, width: int) -> None:
    for value in values(width):
        wide.poke(f"d{width}", value)
        wide.tick()
        assert wide.peek(f"q{width}") == value
        assert wide.peek(f"d{width}") == value
        np.testing.assert_array_equal(wide.peek_words(f"q{width}"), words_of(value, width))


@pytest.mark.parametrize("width", WIDTHS)
def test_words_equal_integers(wide: Model, width: int) -> None:
    for value in values(width):
        wide.poke(f"d{width}", words_of(value, width))
        assert wide.peek(f"d{width}") == value
        assert wide.peek(f"n{width}") == value ^ ((1 << width) - 1)


def test_ports_are_listed_in_full(wide: Model) -> None:
    expected = {"clk": (1, True), "rst": (1, True)}
    for w in WIDTHS:
        expected |= {f"d{w}": (w, True), f"q{w}": (w, False), f"n{w}": (w, False)}
    assert {name: (port.width, port.is_input) for name, port in wide.ports.items()} == expected
    assert [Port("p", w, True, 0).words for w in WIDTHS] == [1, 1, 1, 1, 2, 2, 3, 128]


def test_names_are_those_of_the_verilog() -> None:
    with Model(build_model("names", {"names": NAMES}, optimise=None)) as model:
        assert set(model.ports) == {"clk", "a__b", "_lead__", "weird.name", "a[3]", "y"}
        assert model.ports["a[3]"].width == 6
        for name in ("a__b", "_lead__", "weird.name", "a[3]"):
            model.poke(name, 1)
            model.tick()
            assert model.peek("y") == 1
            model.poke(name, 0)


def test_inputs_begin_at_zero_and_combinational_outputs_settle(wide: Model) -> None:
    assert wide.peek("n4096") == (1 << 4096) - 1
    wide.poke("d4096", 1)
    assert wide.peek("n4096") == (1 << 4096) - 2
    assert wide.cycle == 0
    assert wide.peek("q4096") == 0


def test_outputs_are_read_after_the_edge_that_took_the_inputs(wide: Model) -> None:
    wide.poke("d8", 7)
    wide.tick()
    wide.poke("d8", 9)
    assert (wide.peek("q8"), wide.peek("n8")) == (7, 0xFF ^ 9)
    wide.tick(3)
    assert (wide.peek("q8"), wide.cycle) == (9, 4)


def test_reset_clears_and_lets_go(wide: Model) -> None:
    wide.poke("d8", 7)
    wide.tick()
    wide.reset(3)
    assert (wide.peek("q8"), wide.peek("rst"), wide.cycle) == (0, 0, 4)
    wide.tick()
    assert wide.peek("q8") == 7


def test_run_equals_single_ticks(wide_path: pathlib.Path) -> None:
    cycles = 40
    inputs = {f"d{w}": random_rows(w, cycles, SEED + w) for w in WIDTHS}
    inputs["rst"] = random_rows(1, cycles, SEED) & random_rows(1, cycles, SEED + 1)
    outputs = [f"{kind}{w}" for kind in "qn" for w in WIDTHS]
    with Model(wide_path) as stepped, Model(wide_path) as replayed:
        result = replayed.run(inputs, outputs)
        assert list(result) == outputs
        for t in range(cycles):
            for name, rows in inputs.items():
                stepped.poke(name, rows[t])
            stepped.tick()
            for name in outputs:
                np.testing.assert_array_equal(result[name][t], stepped.peek_words(name))
        assert replayed.cycle == stepped.cycle == cycles
    assert all(result[name].any() for name in outputs)


def test_run_goes_on_where_the_last_one_ended(wide: Model) -> None:
    rows = random_rows(65, 30, SEED)
    parts = [wide.run({"d65": part}, ["q65"])["q65"] for part in (rows[:1], rows[1:1], rows[1:])]
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    assert wide.cycle == 30


def test_run_takes_narrow_and_strided_arrays(wide: Model) -> None:
    rows = random_rows(4096, 20, SEED)
    result = wide.run({"d8": np.arange(10, dtype=np.uint8), "d4096": rows[::2],
                       "d1": np.arange(10) % 2 == 1}, ["q8", "q4096", "q1"])
    np.testing.assert_array_equal(result["q8"][:, 0], np.arange(10))
    np.testing.assert_array_equal(result["q1"][:, 0], np.arange(10) % 2)
    np.testing.assert_array_equal(result["q4096"], rows[::2])


def test_run_without_inputs_takes_a_number_of_cycles(wide: Model) -> None:
    wide.poke("d8", 5)
    np.testing.assert_array_equal(wide.run({}, ["q8"], cycles=3)["q8"], [[5]] * 3)
    with pytest.raises(ValueError, match=re.escape("the same number of cycles, not []")):
        wide.run({}, ["q8"])


def test_instances_have_states_of_their_own(wide_path: pathlib.Path) -> None:
    with Model(wide_path) as one, Model(wide_path) as two:
        one.poke("d65", 1 << 64)
        two.poke("d65", 3)
        one.tick()
        two.tick(2)
        assert (one.peek("q65"), two.peek("q65")) == (1 << 64, 3)
        assert (one.cycle, two.cycle) == (1, 2)


@pytest.mark.parametrize(("name", "value", "error", "message"), [
    ("d7", 0, KeyError, r"port must be one of clk, .*, not 'd7'"),
    ("q8", 0, ValueError, "port must be an input other than clk, not 'q8'"),
    ("clk", 0, ValueError, "port must be an input other than clk, not 'clk'"),
    ("d8", 256, ValueError, "value of d8 must fit 8 bits, not 256"),
    ("d8", -1, ValueError, "value of d8 must fit 8 bits, not -1"),
    ("d65", 1 << 65, ValueError, "value of d65 must fit 65 bits, not 36893488147419103232"),
    ("d65", np.array([0, 0, 2], np.uint32), ValueError, "d65 must fit 65 bits, .* 0x2"),
    ("d65", np.zeros(2, np.uint32), ValueError, r"d65 must have shape \(3,\), not \(2,\)"),
    ("d65", np.zeros(3, np.int32), TypeError, "d65 must be unsigned .*, not int32"),
    ("d65", np.zeros(3), TypeError, "d65 must be unsigned .*, not float64"),
    ("d8", 1.5, TypeError, "float"),
])
def test_value_that_does_not_fit_is_named(wide: Model, name: str, value: Any,
                                          error: type[Exception], message: str) -> None:
    wide.poke("d8", 3)
    with pytest.raises(error, match=message):
        wide.poke(name, value)
    assert wide.peek("d8") == 3


@pytest.mark.parametrize(("inputs", "outputs", "error", "message"), [
    ({"d7": np.zeros(2, np.uint32)}, [], KeyError, "not 'd7'"),
    ({"d8": np.zeros(2, np.uint32)}, ["q7"], KeyError, "not 'q7'"),
    ({"q8": np.zeros(2, np.uint32)}, [], ValueError, "other than clk, not 'q8'"),
    ({"d65": np.zeros(2, np.uint32)}, [], ValueError, r"shape \(cycles, 3\), not \(2,\)"),
    ({"d8": np.array([0, 256], np.uint16)}, [], ValueError, "d8 must fit 8 bits, .* 0x100"),
    ({"d8": [1, 2]}, [], TypeError, r"d8 must be an array, not \[1, 2\]"),
    ({"d8": np.zeros(2, np.uint32), "d1": np.zeros(3, np.uint32)}, [], ValueError,
     r"the same number of cycles, not \[2, 3\]"),
])
def test_wrong_run_is_named_and_does_nothing(wide: Model, inputs: Any, outputs: Any,
                                             error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wide.run(inputs, outputs)
    assert wide.cycle == 0


def test_negative_cycles_are_rejected(wide: Model) -> None:
    with pytest.raises(ValueError, match="cycles must be at least 0, not -1"):
        wide.tick(-1)


def test_model_without_clock_settles_but_does_not_tick() -> None:
    source = "module gate(input [3:0] a, output [3:0] y);\n  assign y = ~a;\nendmodule\n"
    with Model(build_model("gate", {"gate": source}, optimise=None)) as model:
        model.poke("a", 5)
        assert model.peek("y") == 10
        with pytest.raises(RuntimeError, match="has no input clk"):
            model.tick()


def test_finish_ends_a_run(stopper: Model) -> None:
    actions = np.array([0, 0, 0, 1, 0, 0], np.uint32)
    result = stopper.run({"action": actions}, ["count"])
    np.testing.assert_array_equal(result["count"][:, 0], [1, 2, 3, 4])
    assert (stopper.finished, stopper.cycle) == (True, 4)
    with pytest.raises(RuntimeError, match="has ended the simulation"):
        stopper.tick()


def test_finish_stops_only_its_own_instance(stopper_path: pathlib.Path) -> None:
    with Model(stopper_path) as one, Model(stopper_path) as two:
        one.poke("action", 1)
        one.tick()
        assert (one.finished, two.finished) == (True, False)
        two.tick(5)
        assert two.peek("count") == 5


def test_fatal_error_of_the_design_is_raised(stopper: Model) -> None:
    stopper.tick()
    stopper.poke("action", 2)
    with pytest.raises(RuntimeError, match=r"stopper\.v:5: .*\$stop"):
        stopper.tick()
    with pytest.raises(RuntimeError, match="has ended the simulation"):
        stopper.tick()


def test_closed_model_cannot_be_used(wide_path: pathlib.Path) -> None:
    model = Model(wide_path)
    model.tick()
    model.close()
    model.close()
    for use in (lambda: model.poke("d8", 1), lambda: model.peek("d8"), model.tick,
                lambda: model.peek_words("d8"), lambda: model.cycle, lambda: model.trace(None),
                lambda: model.run({"d8": np.zeros(1, np.uint32)}, [])):
        with pytest.raises(RuntimeError, match="is closed"):
            use()


def test_missing_library_is_an_os_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError, match=r"none\.so"):
        Model(tmp_path / "none.so")


def test_model_without_tracing_says_so(wide: Model, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="built without trace=True"):
        wide.trace(tmp_path / "wave.vcd")


@pytest.mark.slow
def test_trace_holds_the_values_of_its_cycles(tmp_path: pathlib.Path) -> None:
    path = build_model("stopper", {"stopper": STOPPER}, optimise=False, trace=True)
    with Model(path) as model:
        model.tick(2)
        model.trace(tmp_path / "wave.vcd")
        model.tick(3)
        model.trace(None)
        model.tick(2)
        with pytest.raises(RuntimeError, match="cannot write"):
            model.trace(tmp_path / "none" / "wave.vcd")
    wave = (tmp_path / "wave.vcd").read_text()
    (code,) = set(re.findall(r"\$var \w+ +8 (\S+) count", wave))
    changes = re.findall(rf"^b([01]+) {re.escape(code)}$", wave, re.MULTILINE)
    assert [int(bits, 2) for bits in changes] == [2, 3, 4, 5]
    assert re.findall(r"^#(\d+)$", wave, re.MULTILINE) == ["4", "5", "6", "7", "8", "9"]
