"""Code generation for ``softmax(relu(x @ W + b))``: one program, for every configuration.

All data lie in vector memory: `SoftmaxLayer` lays them out, and `_Writer` writes the program. Its
loops are scheduled by hand: `_Schedule` packs operations into bundles by the cycle in which each
could issue.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.checks import instance, integer
from hdl.config import Config
from sim.asm.assembler import Assembler, Program
from sim.asm.operands import s, v

__all__ = ["SoftmaxLayer"]

Float32 = npt.NDArray[np.float32]

# Scalar registers: addresses of the next vectors, and loop counters.
_X, _W, _SUM_IN, _SUM_OUT, _OUT, _INNER, _OUTER = (s[number] for number in range(1, 8))
# Vector registers. A list holds one register for each group that is in flight at the same time.
# Vector registers. Those with a list hold a group each, of the groups that are under way at once.
_BIAS = v[1]
_ROWS, _WEIGHTS, _RESULT, _SUM = ([v[2 + kind], v[6 + kind]] for kind in range(4))
_HIDDEN, _MAXIMUM, _POWER, _TOTAL = ([v[10 + 4 * kind + group] for group in range(4)]
                                     for kind in range(4))
_LOG2_E = float(np.float32(np.log2(np.e)))


class _Schedule:
    """Operations by the cycle in which they could issue; each used cycle becomes a bundle.

    The cycles decide which operations share a bundle and in which order bundles follow each other.
    They need not be exact: the hardware's interlocks keep the result correct.
    """

    def __init__(self, asm: Assembler) -> None:
        self._asm = asm
        self._cycles: dict[int, dict[str, tuple[str, tuple[Any, ...]]]] = {}

    def put(self, cycle: int, slot: str, name: str, *operands: Any) -> int:
        """Place an operation in the first bundle from ``cycle`` on whose slot is free."""
        while slot in self._cycles.setdefault(cycle, {}):
            cycle += 1
        self._cycles[cycle][slot] = name, operands
        return cycle

    def advance(self, cycle: int, register: Any, amount: int) -> None:
        """Add to a scalar register, in the first free scalar slot from ``cycle`` on."""
        while {"s0", "s1"} <= self._cycles.setdefault(cycle, {}).keys():
            cycle += 1
        slot = "s1" if "s0" in self._cycles[cycle] else "s0"
        self.put(cycle, slot, "add", register, register, amount)

    def emit(self, loop: str | None) -> None:
        """Write the bundles; the last one loops back to the label ``loop``."""
        cycles = sorted(cycle for cycle, slots in self._cycles.items() if slots)
        if loop is not None:
            self.put(cycles[-1], "s1", "loop", _INNER, loop)
        for cycle in sorted(cycle for cycle, slots in self._cycles.items() if slots):
            with self._asm.bundle() as bundle:
                for slot, (name, operands) in self._cycles[cycle].items():
                    bundle.operation(slot, name, *operands)


def _runs(keys: list[Any]) -> list[tuple[int, int]]:
    """Find the first index and the length of each run of equal keys."""
    starts = [index for index in range(len(keys)) if index == 0 or keys[index] != keys[index - 1]]
    return [(first, end - first) for first, end in zip(starts, [*starts[1:], len(keys)],
                                                       strict=True)]


@dataclass(frozen=True)
class SoftmaxLayer:
    """The layer for one configuration: its data's layout in vector memory, and its program.

    A *group* is the rows of one vector register. The rows of a batch are cut into chunks of so many
    groups that the array can hold the results of one chunk while it computes the next. A depth of
    several weight tiles is computed tile by tile, and the results are added in fp32, in order.

    Parameters
    ----------
    config : Config
        Parameters of the core.
    tiles : int, default 2
        Weight tiles: the depth of x and W is ``tiles * config.array``.
    chunks : int, default 3
        Chunks of the batch.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not a positive integer, or if the data do not fit in vector memory.
    """

    config: Config
    tiles: int = 2
    chunks: int = 3

    def __post_init__(self) -> None:
        instance("config", self.config, Config)
        for name in ("tiles", "chunks"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        if self.vectors > self.config.vmem_vectors:
            raise ValueError(f"tiles and chunks must be small enough for the data to fit in "
                             f"{self.config.vmem_vectors} vectors of vector memory, not need "
                             f"{self.vectors}")

    @property
    def groups(self) -> int:
        """Groups of a chunk."""
        return self.config.result_vregs // 2

    @property
    def block(self) -> int:
        """Groups that one iteration of the softmax loop works on, one after the other."""
        return max(1, min(4, self.groups // 4))

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return self.chunks * self.groups * self.config.sublanes

    @property
    def depth(self) -> int:
        """Columns of x and rows of W."""
        return self.tiles * self.config.array

    @property
    def x_address(self) -> int:
        """First vector of x, whose vectors are ordered by chunk, weight tile and group."""
        return 0

    @property
    def w_address(self) -> int:
        """First vector of W, whose vectors are ordered by tile."""
        return self.x_address + self.chunks * self.tiles * self.groups

    @property
    def b_address(self) -> int:
        """Vector that holds b in sublane 0."""
        return self.w_address + self.tiles * self.config.tile_vregs

    @property
    def sum_address(self) -> int:
        """First vector of a chunk's partial sums: those over the weight tiles so far."""
        return self.b_address + 1

    @property
    def p_address(self) -> int:
        """First vector of the result, whose vectors are ordered by chunk and group."""
        return self.sum_address + self.groups

    @property
    def vectors(self) -> int:
        """Vectors of vector memory that the data take."""
        return self.p_address + self.chunks * self.groups

    def image(self, x: Float32, w: Float32, b: Float32) -> Float32:
        """Lay out the operands as the contents of vector memory from address 0 on.

        Parameters
        ----------
        x : array, shape (rows, depth)
        w : array, shape (depth, lanes)
        b : array, shape (lanes,)

        Raises
        ------
        ValueError
            If a shape differs.
        """
        lanes, sublanes = self.config.lanes, self.config.sublanes
        for name, array, shape in (("x", x, (self.rows, self.depth)), ("w", w, (self.depth, lanes)),
                                   ("b", b, (lanes,))):
            if array.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, not {array.shape!r}")
        memory = np.zeros((self.vectors, sublanes, lanes), np.float32)
        memory[self.x_address:self.w_address] = x.reshape(
            self.chunks, self.groups, sublanes, self.tiles, lanes).transpose(
            0, 3, 1, 2, 4).reshape(-1, sublanes, lanes)
        memory[self.w_address:self.b_address] = w.reshape(-1, sublanes, lanes)
        memory[self.b_address, 0] = b
        return memory

    def result(self, vectors: npt.NDArray[np.uint32]) -> Float32:
        """Take the result, shape (rows, lanes), from its vectors of vector memory."""
        return vectors.view(np.float32).reshape(self.rows, self.config.lanes)

    def program(self) -> Program:
        """Write the program."""
        asm = Assembler(self.config)
        _Writer(self, asm).write()
        return asm.assemble()


class _Writer:
    """Writes the program of a layer.

    A *pass* multiplies a chunk by one weight tile. While its rows are pushed, the weights of the
    next pass are pushed too, and the results of the previous pass are popped. The results of a
    chunk's last pass become the softmax while the rows of the next chunk's first pass are pushed.
    """

    def __init__(self, layer: SoftmaxLayer, asm: Assembler) -> None:
        self._layer = layer
        self._asm = asm
        self._labels = 0

    def write(self) -> None:
        """Write the program."""
        layer, asm = self._layer, self._asm
        tiles = layer.tiles
        with asm.bundle() as bundle:
            bundle.s0.add(_X, s[0], layer.x_address)
            bundle.s1.add(_W, s[0], layer.w_address)
            bundle.ld.load(_BIAS, s[0], layer.b_address)
        with asm.bundle() as bundle:
            bundle.s0.add(_OUT, s[0], layer.p_address)
            bundle.misc.broadcast_sublane(_BIAS, _BIAS, 0)
        self._stream(0, weights=True, rows=False)
        self._stream(0, weights=tiles > 1, swap=True)
        if layer.chunks > 1:
            with asm.bundle() as bundle:
                bundle.s1.add(_OUTER, s[0], layer.chunks - 1)
            label = self._label()
            for tile in range(1, tiles):
                self._stream(tile, weights=True, swap=True, results=True)
            self._softmax(next_chunk=True)
            with asm.bundle() as bundle:
                bundle.s1.loop(_OUTER, label)
        for tile in range(1, tiles):
            self._stream(tile, weights=tile + 1 < tiles, swap=True, results=True)
        self._softmax(next_chunk=False)
        with asm.bundle() as bundle:
            bundle.s1.halt()

    def _label(self) -> str:
        self._labels += 1
        name = f"l{self._labels}"
        self._asm.label(name)
        return name

    def _repeat(self, times: int, body: Callable[[_Schedule], None]) -> None:
        """Write a loop that runs ``body`` so many times."""
        if not times:
            return
        loop = None
        if times > 1:
            with self._asm.bundle() as bundle:
                bundle.s0.add(_INNER, s[0], times)
            loop = self._label()
        schedule = _Schedule(self._asm)
        body(schedule)
        schedule.emit(loop)

    def _rewind(self, tile: int) -> None:
        """Set the addresses for the pass over ``tile``."""
        layer = self._layer
        if tile + 1 == layer.tiles:
            with self._asm.bundle() as bundle:
                bundle.s0.add(_W, s[0], layer.w_address)
        with self._asm.bundle() as bundle:
            bundle.s0.add(_SUM_IN, s[0], layer.sum_address)
            bundle.s1.add(_SUM_OUT, s[0], layer.sum_address)

    def _stream(self, tile: int, *, weights: bool, rows: bool = True, swap: bool = False,
                results: bool = False) -> None:
        """Write a pass; its results are popped later.

        Parameters
        ----------
        tile : int
            Number of the weight tile.
        weights : bool
            Push the next weight tile meanwhile; the first one if not ``rows``.
        rows : bool
            Push the rows.
        swap : bool
            Switch to the weights that were pushed last.
        results : bool
            Pop the results of the previous pass, and add them to the sums.
        """
        layer = self._layer
        loads = layer.config.tile_vregs if weights else 0
        self._rewind(tile if rows else 0)
        keys = [(rows, swap and index == 0, index < loads)
                for index in range(layer.groups if rows else loads)]
        for first, count in _runs(keys):
            _, swaps, load = keys[first]
            for width, times in ((2, count // 2), (1, count % 2)):
                def body(schedule: _Schedule, width: int = width, swaps: bool = swaps,
                         load: bool = load) -> None:
                    if load:
                        self._push(schedule, 1, _WEIGHTS[:width], _W, "weights")
                    if rows:
                        self._push(schedule, 0, _ROWS[:width], _X, "rows_swap" if swaps else "rows")
                    if results:
                        self._add(schedule, width, first_pass=tile == 1)
                self._repeat(times, body)

    @staticmethod
    def _push(schedule: _Schedule, start: int, registers: list[Any], address: Any,
              name: str) -> None:
        cycle = start
        for index, register in enumerate(registers):
            cycle = schedule.put(start + 2 * index, "ld", "load", register, address, index)
            schedule.put(cycle + 3, "push", name, register)
        schedule.advance(cycle, address, len(registers))

    @staticmethod
    def _add(schedule: _Schedule, width: int, first_pass: bool) -> None:
        cycle = 0
        for index in range(width):
            cycle = 2 * index
            result = _RESULT[index]
            schedule.put(cycle, "pop", "pop", result)
            if not first_pass:
                loaded = schedule.put(cycle, "ld", "load", _SUM[index], _SUM_IN, index)
                cycle = schedule.put(loaded + 3, "v0", "fadd", result, _SUM[index], result)
            cycle = schedule.put(cycle + 4, "st", "store", result, _SUM_OUT, index)
        if not first_pass:
            schedule.advance(cycle, _SUM_IN, width)
        schedule.advance(cycle, _SUM_OUT, width)

    def _softmax(self, *, next_chunk: bool) -> None:
        """Write the softmax of a chunk's last results, and the start of the next chunk.

        The loop is software-pipelined: three stages overlap, one block of groups apart.
        """
        layer = self._layer
        swap = layer.tiles > 1
        loads = layer.config.tile_vregs if swap else 0
        self._rewind(0)
        blocks = -(-layer.groups // layer.block)

        def key(step: int) -> tuple[Any, ...]:
            groups = range(step * layer.block, (step + 1) * layer.block)
            pushes = tuple((group < layer.groups, next_chunk and swap and group == 0,
                            next_chunk and group < loads) for group in groups)
            done = tuple(group < layer.groups
                         for back in (1, 2) for group in range((step - back) * layer.block,
                                                               (step - back + 1) * layer.block))
            return step < blocks, 1 <= step <= blocks, 2 <= step, pushes, done

        keys = [key(step) for step in range(blocks + 2)]
        for first, count in _runs(keys):
            def body(schedule: _Schedule, step: int = first) -> None:
                for place in range(layer.block):
                    self._phase(schedule, step, place, next_chunk, swap, loads)
            self._repeat(count, body)

    def _phase(self, schedule: _Schedule, step: int, place: int, next_chunk: bool, swap: bool,
               loads: int) -> None:
        """Schedule one group of each stage, and one group of the next chunk."""
        layer = self._layer
        begin = 16 * place
        hidden, maximum = _HIDDEN[place], _MAXIMUM[place]
        power, total = _POWER[place], _TOTAL[place]

        def groups(back: int) -> bool:
            return 0 <= (step - back) * layer.block + place < layer.groups and step >= back

        if groups(2):
            # p = power / total
            schedule.put(begin, "v1", "reciprocal", total, total)
            schedule.put(begin + 6, "v0", "fmul", total, power, total)
            schedule.put(begin + 10, "st", "store", total, _OUT)
            schedule.advance(begin + 10, _OUT, 1)
        if groups(1):
            # power = exp(hidden - maximum), and its sum over the lanes
            schedule.put(begin, "v0", "fsub", hidden, hidden, maximum)
            schedule.put(begin + 4, "v0", "fmul", hidden, hidden, _LOG2_E)
            schedule.put(begin + 8, "v1", "exp2", power, hidden)
            schedule.put(begin + 14, "misc", "sum_lanes", total, power)
        if groups(0):
            # hidden = relu(results + bias), and its maximum over the lanes
            result = _RESULT[0]
            schedule.put(begin, "pop", "pop", result)
            if layer.tiles > 1:
                schedule.put(begin, "ld", "load", _SUM[0], _SUM_IN)
                schedule.advance(begin, _SUM_IN, 1)
                schedule.put(begin + 4, "v1", "fadd", result, _SUM[0], result)
            schedule.put(begin + 9, "v0", "fadd", result, result, _BIAS)
            schedule.put(begin + 13, "v0", "fmax", hidden, result, 0)
            schedule.put(begin + 16, "misc", "max_lanes", maximum, hidden)
            if next_chunk:
                group = step * layer.block + place
                if group < loads:
                    self._push(schedule, begin + 2, _WEIGHTS[:1], _W, "weights")
                self._push(schedule, begin + 1, _ROWS[:1], _X,
                           "rows_swap" if swap and group == 0 else "rows")
