"""Random machine code: loops, branches, memory, masks, variables, and the array."""

import random

from hdl.config import Config
from sim.compiler.machine import Builder, Index, MachineCode, MReg, SReg, VmemBuffer, VReg

BINARY = ("add", "sub", "xor", "and", "or", "fadd", "fmul", "fmax", "shl")
UNARY = ("fneg", "i2f", "f2i", "bf16", "move", "reciprocal", "exp2")
COMPARE = ("lt", "eq", "ltu", "flt", "fge")
MASK = ("mand", "mor", "mxor", "mandn")
SCALAR = ("add", "sub", "mul", "xor", "min", "ltu")
CONSTANTS = (0, 1, -5, 1.5, -0.25, 12345, 0x7FC00000, -100000)
SIZE = 40
"""Number of vectors of a buffer."""


class Writer:
    """Writes random code of about ``size`` operations, which use four buffers of vector memory.

    The buffers are adjacent; the first one is at address ``first``.
    """

    def __init__(self, config: Config, seed: int, size: int, *, flow: bool = True,
                 first: int = 0) -> None:
        self.random = random.Random(seed)
        self.b = Builder(config)
        self.config = config
        self.flow = flow
        self.left = size
        self.buffers = [VmemBuffer(f"b{n}", first + n * SIZE, SIZE) for n in range(4)]
        self.loops: list[tuple[Index, int]] = []
        self.vectors: list[VReg] = []
        self.masks: list[MReg] = [self.b.all_ones]
        self.scalars: list[SReg] = []
        self.weights = False

    def code(self) -> MachineCode:
        """Return the code, which finally stores its variables in memory."""
        b = self.b
        self.vectors = [b.load(self.buffers[n % 4], n) for n in range(3)]
        self.scalars = [b.smem_load(n) for n in range(3)]
        variables = [b.variable(self.vectors[0]), b.variable(0.5)]
        counters = [b.scalar_variable(3), b.scalar_variable(self.scalars[0])]
        flags = [b.variable(b.compare("lt", self.vectors[0], 100))]
        self.variables = [*variables, *counters, *flags]
        self.vectors += variables
        self.scalars += counters
        self.masks += flags
        while self.left > 0:
            self.item(0)
        for number, vector in enumerate(variables):
            b.store(vector, self.buffers[0], number)
        for number, scalar in enumerate(counters):
            b.smem_store(scalar, number)
        b.store(b.vector("select", 1, 0, flags[0]), self.buffers[0], 5)
        return b.finish()

    def item(self, depth: int) -> None:
        """Write an operation, a loop or a branch."""
        choice = self.random.random()
        kinds = len(self.vectors), len(self.masks), len(self.scalars)
        if depth < 3 and choice < 0.12:
            count = self.random.choice((1, 2, 3, 7, 12))
            dynamic = self.random.random() < 0.3
            self.left -= 2
            with self.b.loop(self.b.value(count) if dynamic else count) as i:
                self.loops.append((Index.of(i), count))
                self.body(depth)
                self.loops.pop()
        elif depth < 3 and self.flow and choice < 0.18:
            self.left -= 2
            with self.b.when(self.random.choice(("lt", "eq", "geu")), self.scalar(), self.scalar()):
                self.body(depth, 3)
            if self.random.random() < 0.5:
                self.cut(kinds)
                with self.b.otherwise():
                    self.body(depth, 3)
        else:
            self.left -= 1
            self.operation()
            return
        self.cut(kinds)

    def cut(self, kinds: tuple[int, int, int]) -> None:
        """Forget the registers of a loop's body or a branch, because later code cannot use them."""
        del self.vectors[kinds[0]:], self.masks[kinds[1]:], self.scalars[kinds[2]:]

    def body(self, depth: int, most: int = 10) -> None:
        for _ in range(self.random.randrange(1, most)):
            self.item(depth + 1)

    def scalar(self) -> SReg | int:
        if self.random.random() < 0.3:
            return self.random.choice((0, 1, 2, 5, 100, -3))
        return self.random.choice(self.scalars)

    def vector(self) -> VReg:
        return self.random.choice(self.vectors[-8:] + self.vectors[:5])

    def source(self) -> "VReg | SReg | int | float":
        choice = self.random.random()
        if choice < 0.2:
            return self.random.choice(CONSTANTS)
        return self.random.choice(self.scalars) if choice < 0.3 else self.vector()

    def mask(self) -> MReg:
        return self.random.choice(self.masks[-3:])

    def index(self) -> Index:
        """A random index within a buffer, often computed from the counters of loops."""
        index, room = Index(0), SIZE - 1
        for variable, count in self.loops:
            factor = self.random.choice((0, 1, 1, 1, 2))
            if factor * (count - 1) <= room:
                index, room = index + variable * factor, room - factor * (count - 1)
        if room > 8 and self.random.random() < 0.2:
            index += self.b.scalar("and", self.random.choice(self.scalars), 7)
            room -= 7
        return index + self.random.randrange(min(room, 4) + 1)

    def keep(self, value: "VReg | MReg | SReg") -> None:
        """Make a result an operand of later operations, and sometimes assign it to a variable."""
        if isinstance(value, VReg):
            self.vectors.append(value)
        elif isinstance(value, MReg):
            self.masks.append(value)
        else:
            self.scalars.append(value)
        if self.random.random() < 0.15:
            self.b.assign(self.random.choice([variable for variable in self.variables
                                              if isinstance(variable, type(value))]), value)

    def operation(self) -> None:
        b, pick = self.b, self.random.choice
        choice = self.random.randrange(20)
        if choice < 4:
            self.keep(b.load(pick(self.buffers), self.index()))
        elif choice < 7:
            mask = self.mask() if self.random.random() < 0.3 else None
            b.store(self.vector(), pick(self.buffers), self.index(), mask)
        elif choice < 10:
            self.keep(b.vector(pick(BINARY), self.source(), self.source()))
        elif choice < 11:
            self.keep(b.vector(pick(UNARY), self.vector()))
        elif choice < 12:
            self.keep(b.vector("select", self.vector(), self.source(), self.mask()))
        elif choice < 13:
            self.keep(b.compare(pick(COMPARE), self.vector(), self.source()))
        elif choice < 14:
            self.keep(b.mask(pick(MASK), self.mask(), self.mask()))
        elif choice < 15:
            self.keep(b.scalar(pick(SCALAR), self.scalar(), self.scalar()))
        elif choice < 16:
            self.keep(b.smem_load(b.scalar("and", pick(self.scalars), 31) + 1))
        elif choice < 17:
            b.smem_store(pick(self.scalars), pick((3, 9, b.scalar("and", pick(self.scalars), 15))))
        else:
            self.rows(choice)

    def rows(self, choice: int) -> None:
        """Write operations of the cross-lane unit and of the array."""
        b, pick = self.b, self.random.choice
        if choice < 18:
            name, limit = pick((("rotate_lanes", self.config.lanes), ("sum_lanes", 0),
                                ("rotate_sublanes", self.config.sublanes), ("max_lanes", 0),
                                ("broadcast_lane", self.config.lanes)))
            amount = self.random.randrange(limit) if limit else None
            self.keep(b.cross(name, self.vector(), amount))
        elif choice < 19:
            for group in range(self.config.tile_vregs):
                b.transpose_in(self.vector(), group)
            self.keep(b.transpose_out(self.random.randrange(self.config.tile_vregs)))
        else:
            kind = pick(("weights", "weights_t"))
            for _ in range(self.config.tile_vregs):
                b.push(kind, self.vector())
            b.push("rows_swap", self.vector())
            b.push("rows", self.vector())
            self.keep(b.pop())
            self.keep(b.pop())
