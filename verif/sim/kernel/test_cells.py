"""Every operator of a tile's netlist, at many widths, compared with Verilator."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hdl.tiles import Each, Shared, TileGrid
from sim.verilated.model import Model
from verif.sim.kernel.lockstep import SECOND, Lockstep, VerilogTile, packed

SEED = 71
QUICK_WIDTHS = (1, 8, 17, 33)
WIDTHS = (1, 7, 8, 15, 16, 17, 31, 32, 33, 64)
COLS = 3
CYCLES = 1500


def expressions(w: int) -> Iterator[tuple[int, str]]:
    """Result width and expression of each operator on operands of ``w`` bits.

    ``a``, ``b`` have w bits, ``n`` is a narrow operand, ``sa``, ``sb``, ``sn`` are the same signed;
    ``c`` is a bit, ``k`` three bits.
    """
    wide = min(w + 3, 64)
    for op in ("+", "-", "&", "|", "^", "~^"):
        yield w, f"a {op} b"
        yield wide, f"sa {op} sn"
        yield wide, f"a {op} n"
    yield w, "a * b"
    yield min(2 * w, 64), "a * b"
    yield min(2 * w, 64), "sa * sb"
    yield wide, "sn * sb"
    yield w, "~a"
    yield wide, "-sa"
    yield wide, "-a"
    yield wide, "+sa"
    for op in ("==", "!=", "<", "<=", ">", ">="):
        yield 1, f"a {op} b"
        yield 1, f"sa {op} sn"
    yield 1, "a === n"
    yield 1, "sa !== sb"
    yield 1, f"a == {{{w}{{1'b1}}}}"
    yield 1, f"a >= {max(w, 2)}'d3"
    for op in ("&", "|", "^", "~^", "!", "~&", "~|"):
        yield 1, f"{op}a"
    yield 1, "a && n"
    yield 1, "a || b"
    for op in ("<<", ">>", "<<<", ">>>"):
        yield w, f"a {op} n"
        yield w, f"sa {op} b"
        yield wide, f"sa {op} n"
        yield max(1, w - 1), f"sa {op} k"
        yield w, f"{w}'sd1 {op} n"
        yield w, f"a {op} 1"
    yield w, "c ? a : b"
    yield w, "c ? a : 0"
    yield w, "(a & b) | (a & ~n) | (b ^ n)"
    yield w, "a ^ (b & (n | a)) ^ {c}"
    yield wide, "a + b + c"
    yield w, "(a == b) ? n : (a < b) ? a - b : b - a"
    yield w, "((a < b) & (n > a) & ~(a == n) & c) ? a : b"
    yield w, "k[0] ? (k[1] ? a : b) : (k[2] ? n : ~a)"
    if w <= 32:
        yield w, "{a, b} >> k"
    if w > 10:
        # Within bounds; the result is undefined elsewhere.
        yield 1, "a[k]"
        yield 3, "a[k +: 3]"
        yield 2, "b[$signed({1'b0, k}) + 1 -: 2]"
    if w > 4:
        yield w, f"{{a[2:0], a[{w - 1}:3]}}"
        yield w, f"{{b[3:0], c, a[{w - 1}:5]}}"
        yield w, f"{{{w - 2}{{c}}}} ^ b"
        yield 1, f"a[{w - 1}:2] == b[{w - 3}:0]"
        yield w, f"a[{w - 1}:3] == 0 ? a << 2 : a"


def body_of(w: int, index: int) -> Iterator[str]:
    """Verilog of registers of all expressions of width ``w``; bit ``index`` enables them.

    The separate enable makes them a group, whose SIMD lanes are as narrow as they allow.
    """
    yield f"""
  wire [{w - 1}:0] a_{w} = a[{w - 1}:0], b_{w} = b[{w - 1}:0];
  wire [{min(w, 7) - 1}:0] n_{w} = n[{min(w, 7) - 1}:0];
  wire signed [{w - 1}:0] sa_{w} = a_{w}, sb_{w} = b_{w};
  wire signed [{min(w, 7) - 1}:0] sn_{w} = n_{w};"""
    for number, (width, expression) in enumerate(expressions(w)):
        name = f"o{w}_{number}"
        text = expression
        for operand in ("sa", "sb", "sn", "a", "b", "n"):
            text = substitute(text, operand, f"{operand}_{w}")
        yield f"  reg [{width - 1}:0] {name}_q = 0;\n  assign {name} = {name}_q;"
        yield f"  always @(posedge clk) if (en[{index}]) {name}_q <= {text};"
    # Cases with several patterns become $pmux, indexed constant tables $bmux or $shiftx.
    yield f"""
  reg [{w - 1}:0] case{w}_q = 0;
  assign case{w} = case{w}_q;
  always @(posedge clk) if (en[{index}])
    case (k)
      3'd0: case{w}_q <= a_{w};
      3'd1: case{w}_q <= b_{w};
      3'd2: case{w}_q <= ~a_{w};
      3'd5: case{w}_q <= n_{w};
      default: case{w}_q <= {w}'d1;
    endcase"""


def substitute(text: str, name: str, replacement: str) -> str:
    return re.sub(rf"(?<![\w']){name}(?!\w)", replacement, text)


def grid(widths: Sequence[int]) -> Callable[[str], TileGrid]:
    def make(module: str) -> TileGrid:
        outputs = {}
        lines: list[str] = []
        for index, w in enumerate(widths):
            for number, (width, _) in enumerate(expressions(w)):
                outputs[f"o{w}_{number}"] = width
            outputs[f"case{w}"] = w
            lines += body_of(w, index)
        inputs = {"a": 64, "b": 64, "n": 7, "c": 1, "k": 3, "en": len(widths)}
        text = "\n".join(lines)
        tile = f"cells{len(widths)}_{widths[0]}_tile"
        return TileGrid(module, tile, lambda: VerilogTile(tile, inputs, outputs, text), 1, COLS,
                        [*(Each(name) for name in inputs if name != "en"), Shared("en"),
                         *(Each(name) for name in outputs)])
    return make


def operands(rng: np.random.Generator, width: int, shape: tuple[int, int]) -> NDArray[np.uint64]:
    """Random numbers, half of them close to powers of two, to 0 or to the largest number."""
    top = (1 << width) - 1
    values = np.frombuffer(rng.bytes(8 * int(np.prod(shape))), np.uint64).reshape(shape) & \
        np.uint64(top)
    powers = np.uint64(1) << rng.integers(0, width, shape).astype(np.uint64)
    near = powers + rng.integers(-2, 3, shape).astype(np.uint64)
    ends = rng.choice(np.array([0, 1, 2, top, top - 1, top >> 1], np.uint64), shape)
    small = values >> rng.integers(0, width, shape).astype(np.uint64)
    which = rng.integers(0, 6, shape)
    return np.select([which < 2, which == 2, which == 3, which == 4],
                     [values, near, ends, small], values) & np.uint64(top)


def check(bench: Lockstep, widths: Mapping[str, Sequence[int]]) -> None:
    rng = np.random.default_rng(SEED)
    with Model(bench.path) as model:
        inputs: dict[str, np.ndarray] = {}
        for name, count in widths.items():
            a = operands(rng, 64, (CYCLES, COLS))
            same = rng.random((CYCLES, COLS)) < 0.1
            inputs |= {
                f"{name}_a": packed(a, 64),
                f"{name}_b": packed(np.where(same, a, operands(rng, 64, (CYCLES, COLS))), 64),
                f"{name}_n": packed(operands(rng, 7, (CYCLES, COLS)), 7),
                f"{name}_c": packed(rng.integers(0, 2, (CYCLES, COLS)), 1),
                f"{name}_k": packed(rng.integers(0, 8, (CYCLES, COLS)), 3),
                f"{name}_en": rng.integers(0, 1 << len(count), CYCLES).astype(np.uint32),
            }
        seen = bench.run(model, inputs, CYCLES)
    assert seen.mean() > 0.95


@pytest.mark.quick
def test_operators_match_verilator_at_some_widths() -> None:
    check(Lockstep("kernel_cells_quick", {"cells": grid(QUICK_WIDTHS)}, ["native"]),
          {"cells": QUICK_WIDTHS})


@pytest.mark.slow
def test_operators_match_verilator_at_all_widths_on_all_backends() -> None:
    widths = {"odd": WIDTHS[0::2], "even": WIDTHS[1::2]}
    bench = Lockstep("kernel_cells", {name: grid(some) for name, some in widths.items()},
                     {"odd": ["native", *SECOND, "portable32"],
                      "even": ["native", *SECOND, "portable16"]})
    check(bench, widths)
