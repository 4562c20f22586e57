"""Writes docs/isa.md, the manual of the instruction set, from `hdl.isa` and `hdl.config`."""

import pathlib
import re
from collections.abc import Iterable, Iterator

from hdl import isa
from hdl.config import PRESETS, Config
from hdl.dma.format import DESCRIPTOR, DESCRIPTOR_WORDS, DMA_SPACES, DmaSpaceInfo
from hdl.isa import Kind, Operand, Operation, Slot, Unit
from sim.asm import text as assembly
from sim.asm.naming import default, method_name

__all__ = ["PATH", "document", "syntax"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "isa.md"
"""The manual's place."""

_SLOT_TITLES = {
    (Slot.S0, Slot.S1): "Both scalar slots, `s0` and `s1`",
    (Slot.S0,): "Scalar slot `s0`: the scalar memory",
    (Slot.S1,): "Scalar slot `s1`: branches",
    (Slot.V0, Slot.V1): "Both vector slots, `v0` and `v1`",
    (Slot.V1,): "Vector slot `v1`: transcendental functions and random numbers",
    (Slot.LOAD,): "Slot `ld`: vector load",
    (Slot.STORE,): "Slot `st`: vector store",
    (Slot.PUSH,): "Slot `push`: to the array",
    (Slot.POP,): "Slot `pop`: from the array",
    (Slot.MISC,): "Slot `misc`: the cross-lane unit, semaphores, and transfers",
}
_KINDS = {
    Kind.SCALAR_OUT: "Number of a scalar register.",
    Kind.SCALAR_IN: "Number of a scalar register.",
    Kind.SCALAR_INOUT: "Number of a scalar register.",
    Kind.SOURCE: f"0 to {isa.SCALAR_REGISTERS - 1}: that scalar register. {isa.FIRST_IMMEDIATE} to "
        f"{isa.FIRST_IMMEDIATE + isa.IMMEDIATES - 1}: immediate 0 to {isa.IMMEDIATES - 1}. "
        f"{isa.INLINE_BASE + isa.INLINE_MIN} to {isa.INLINE_BASE + isa.INLINE_MAX}: the integer "
        f"code - {isa.INLINE_BASE}, from {isa.INLINE_MIN} to {isa.INLINE_MAX}, as 32 bits. Others "
        "are illegal.",
    Kind.VECTOR_OUT: "Number of a vector register.",
    Kind.VECTOR_IN: "Number of a vector register.",
    Kind.VECTOR_SOURCE: f"{isa.VECTOR_FLAG} to {isa.VECTOR_FLAG + isa.VECTOR_REGISTERS - 1}: "
        f"vector register code - {isa.VECTOR_FLAG}. Below {isa.VECTOR_FLAG}: a scalar source, "
        "whose 32 bits all elements get. Others are illegal.",
    Kind.MASK_OUT: f"Number of a mask register, 1 to {isa.MASKS - 1}; others are illegal.",
    Kind.MASK_IN: f"Number of a mask register, 0 to {isa.MASKS - 1}; others are illegal.",
    Kind.SEMAPHORE: f"Number of a semaphore, 0 to {isa.SEMAPHORES - 1}; others are illegal.",
    Kind.IMMEDIATE: f"Number of an immediate, 0 to {isa.IMMEDIATES - 1}; others are illegal.",
}
_SYNTAX = {
    Kind.SCALAR_OUT: "s*{}*", Kind.SCALAR_IN: "s*{}*", Kind.SCALAR_INOUT: "s*{}*",
    Kind.SOURCE: "*{}*", Kind.VECTOR_SOURCE: "*{}*", Kind.VECTOR_OUT: "v*{}*",
    Kind.VECTOR_IN: "v*{}*", Kind.MASK_OUT: "m*{}*", Kind.MASK_IN: "m*{}*",
    Kind.SEMAPHORE: "sem*{}*", Kind.IMMEDIATE: "*target*",
}
_LATENCY = {
    Unit.SIMPLE: str(isa.SIMPLE_LATENCY), Unit.FLOAT: str(isa.FLOAT_LATENCY),
    Unit.TRANSCENDENTAL: str(isa.TRANSCENDENTAL_LATENCY), Unit.SCALAR: "1", Unit.SEMAPHORE: "1",
    Unit.BRANCH: "1", Unit.SMEM: "2", Unit.VMEM: str(isa.LOAD_LATENCY), Unit.MXU: "rows",
    Unit.XLU: "rows", Unit.DMA: "", Unit.OTHER_CORE: "",
}
_WRITTEN = (Kind.SCALAR_OUT, Kind.SCALAR_INOUT, Kind.VECTOR_OUT, Kind.MASK_OUT)


def syntax(operation: Operation) -> str:
    """An operation in the text form, with its operands' fields in italics."""
    text = ""
    closing = ""
    for operand in operation.operands:
        word = (" " if not text else ", ") + _SYNTAX[operand.kind].format(operand.field)
        if default(operation, operand) is not None:
            word, closing = f" [{word.strip()}", closing + "]"
        text += word
    return f"`{operation.name}`{text}{closing}"


def _latency(operation: Operation) -> str:
    if operation.unit in (Unit.SMEM, Unit.VMEM) and not any(
            operand.kind in _WRITTEN for operand in operation.operands):
        return "1"
    return _LATENCY[operation.unit]


def _cell(text: str) -> str:
    """Text that may stand in a table."""
    return re.sub(r"([|*_~])", r"\\\1", text)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def _state() -> list[str]:
    elements = "sublanes \N{MULTIPLICATION SIGN} lanes"
    banks = (
        ("s", isa.SCALAR_REGISTERS, "scalar registers of 32 bits; `s0` reads as 0, and what is "
         "written to it is lost"),
        ("v", isa.VECTOR_REGISTERS, f"vector registers of {elements} elements of 32 bits"),
        ("m", isa.MASKS, f"mask registers of {elements} bits; `m0` is all ones and cannot be "
         "written"),
        ("sem", isa.SEMAPHORES, "semaphores: numbers of 32 bits that `signal`, transfers, the "
         "other core and the host add to and `wait` subtracts from"),
    )
    return _table(["state", "what it is"], [
        *((f"`{name}0` … `{name}{count - 1}`", what) for name, count, what in banks),
        ("vector memory", "`vmem[i]` is a whole vector register: **an address counts vector "
         "registers**"),
        ("scalar memory", "`smem[i]` is a word of 32 bits: an address counts words"),
        ("instruction memory", "a bundle for each address: the program counter counts bundles"),
        ("HBM", "memory that all cores reach, by transfers only, in rows of lanes words"),
        ("array", "the active weight tile, the next one as far as it is loaded, results not yet "
         "popped"),
        ("transposer", "a tile of lanes \N{MULTIPLICATION SIGN} lanes elements"),
    ])


def _sizes() -> list[str]:
    measures: list[tuple[str, str]] = [
        ("lanes", "lanes"), ("sublanes", "sublanes"), ("bytes of a vector register", "bytes"),
        ("vector memory, registers", "vmem_vectors"), ("scalar memory, words", "smem_words"),
        ("instruction memory, bundles", "imem_bundles"),
        ("HBM, bytes", "hbm_bytes"), ("bytes of a row", "row_bytes"),
        ("`tile_vregs`: pushes of a weight tile", "tile_vregs"),
        ("`result_vregs`: results that the array holds, registers", "result_vregs"),
    ]

    def value(config: Config, name: str) -> int:
        if name == "bytes":
            return 4 * config.lanes * config.sublanes
        number: int = getattr(config, name)
        return number

    return _table(["", *(f"`{name}`" for name in PRESETS)],
                  [[title, *(value(config, name) for config in PRESETS.values())]
                   for title, name in measures])


def _layout() -> list[str]:
    rows: list[list[object]] = []
    position = 0
    for slot, widths in isa.SLOTS.items():
        for name, width in widths.items():
            rows.append([f"`{slot}`", f"`{name}`", _range(position, width), width])
            position += width
    rows.append(["", "reserved, zero", _range(position, isa.RESERVED_BITS), isa.RESERVED_BITS])
    position += isa.RESERVED_BITS
    for number in range(isa.IMMEDIATES):
        rows.append(["", f"`imm{number}`", _range(position, 32), 32])
        position += 32
    return _table(["slot", "field", "bits", "width"], rows)


def _range(low: int, width: int) -> str:
    return f"{low + width - 1}:{low}" if width > 1 else str(low)


def _operations() -> Iterator[str]:
    for slots, title in _SLOT_TITLES.items():
        yield from [f"### {title}", ""]
        yield from _table(
            ["code", "operation", "latency", "what it does", "faults"],
            ([operation.op.value, syntax(operation), _latency(operation),
              _cell(operation.semantics).replace("imm[d]", "*target*"),
              ", ".join(fault.name for fault in operation.faults)]
             for operation in isa.OPERATIONS if operation.slots == slots))


def _operands() -> list[str]:
    def used(kind: Kind) -> str:
        fields: list[Operand] = [operand for operation in isa.OPERATIONS
                                 for operand in operation.operands if operand.kind is kind]
        return ", ".join(f"`{name}`" for name in sorted({operand.field for operand in fields}))

    return _table(["operand", "fields", "code"],
                  [[kind.value, used(kind), _KINDS[kind]] for kind in Kind])


def _grammar() -> str:
    doc = assembly.__doc__ or ""
    return "\n".join(line.removeprefix("    ") for line in doc.splitlines()
                     if line.startswith("    "))


_INTRODUCTION = f"""\
# The instruction set

What a program for a core may say and what it means; enough to write one. [numerics.md](numerics.md)
and [transcendentals.md](transcendentals.md) fix the bits of arithmetic, [core.md](core.md) says how
the hardware does it. Written by `make docs` from `hdl/isa.py`, from which the RTL, the golden
machine and the assembler take the same codes.

A program is a sequence of **bundles** of {isa.BUNDLE_BITS} bits. A bundle has {len(isa.SLOTS)}
slots, each with an operation or none, and {isa.IMMEDIATES} immediates of 32 bits that its slots
share. In text:

    loop: {{ s0.add s2, s2, 1 | s1.loop s1, loop | v0.fadd v1, v1, 1.5f | ld.load v2, s2, 8 }}

## State
"""

_STATE = """\
In simulation all of it is zero at first, except `m0`; in hardware, memories, transposer, vector and
mask registers may hold anything until they are written. Weights are absent until the first swap. An
instruction memory of zeros is bundles that do nothing. A reset stops the program, sets program
counter, fault and semaphores to zero, and empties the array, weights included; memories, registers
of all kinds and the transposer stay, but what was under way may or may not be written. `start`
changes the program counter and clears the fault; everything else stays as programs and host left
it.

Elements have no type: an operation reads them as fp32, as integers (signed unless it says
otherwise), or as bits. Sizes of the presets:
"""

_LAYOUT = f"""\
## Bundle layout

A bundle lies in instruction memory as {isa.BUNDLE_WORDS} words of 32 bits, the lowest bits first.
The host writes word *w* of bundle *i* at address 16·*i* + *w*.
"""

_ENCODING = """\
Field `op` is the operation's code. Code 0 leaves the slot without an operation. Fields that an
operation does not use are ignored; reserved bits must be zero.

## Operands
"""

_EXECUTION = f"""\
An address is the sum of a register and a scalar source, modulo 2\\*\\*32, both signed or not. An
integer as a vector source is its bits, also for fp32 operations: `1` is the pattern 00000001, and
one is `1.0f`. `0` is +0 in both.

## Execution

- **Bundles are executed one after the other.** All operations of a bundle, branches too, read the
  state that the bundles before it left; then all write. So `{{ push.rows v1 | ld.load v1, s2 |
  s0.add s2, s2, 1 }}` pushes the old `v1`, loads from the old `s2`, and swapping two registers
  takes one bundle. A load and a store of one bundle at one address: the load gets the old word.
- **Two slots must not write the same register**: that is the fault CONFLICT, whatever the values.
  `s0` does not count. No other state can be written twice by one bundle.
- **Every schedule is correct.** Hardware holds a bundle until what it needs is there: registers
  whose result is under way, units that are busy, semaphores. Latency changes how long a program
  takes, never what it does. There are no delay slots.
- **A bundle happens as a whole or not at all.** Faults are precise: if any operation has one, no
  slot does anything, the core stops, and the host reads the cause and the program counter of this
  bundle. All bundles before it are complete. If there are several causes, the one with the least
  number counts. A fault is looked for before a semaphore is waited for. Only BUS_ERROR is another
  matter: it comes when a transfer meets it.
- After a bundle comes that at the next address, unless a branch is taken. A taken branch takes no
  extra cycle. Beyond the instruction memory, by a branch or past its end, the fault PC_RANGE is
  that of the *next* bundle, which cannot be fetched: the branch itself was executed, and the
  program counter is its target.
- `halt` stops the core; the bundle's other operations are executed. The program counter stays at
  the bundle. Results under way still arrive.
- The host may `start` a core that does not run at any address, and `stop` one that runs: it stops
  before the next bundle, whose address the program counter then is, and `start` there goes on as if
  nothing had happened. A stop in the cycle in which a `halt` is executed changes nothing: the
  program counter stays at that bundle, and a start there executes it a second time. The host can
  also signal semaphores, at any time. If a semaphore would
  overflow by that, it stays as it is, and the core stops with the fault SEMAPHORE at the bundle
  that would be next. A core that stands gets the fault, too. The first fault counts: it stays until
  the next start.
- `wait` holds its whole bundle, and the program behind it. Units go on with what they have. With a
  watchdog set by the host, a core that could execute no bundle for that many cycles stops with the
  fault WATCHDOG.

## Latency

The number of cycles from a bundle to the first one that can use the result without waiting; 1 is
the next bundle.

| what | cycles |
|---|---|
| scalar operations, `read_semaphore`, branches | 1 |
| scalar load | 2 |
| vectors: integers, masks, comparisons, fp32 without rounding | {isa.SIMPLE_LATENCY} |
| `fadd`, `fsub`, `fmul`, `i2f` | {isa.FLOAT_LATENCY} |
| vector load | {isa.LOAD_LATENCY} |
| transcendental, `random` | {isa.TRANSCENDENTAL_LATENCY} |
| vector and scalar stores | 1: the next bundle's load gets what was stored |

Scalar, vector, load and store slots take an operation each cycle. In one vector slot, two results
must not arrive in the same cycle: an operation that is faster than the one before it may be held
until its result comes later.

Array and cross-lane unit move one **row**, a sublane of a register, each cycle (*rows* in the
tables below). Pushing a register takes sublanes cycles, and so does popping one or a cross-lane
operation. One more push of each kind (weights, rows), one pop and one cross-lane operation may wait
for their turn, so to keep the array busy it suffices to push a register every sublanes cycles. A
register that such a push has yet to read may be overwritten in the program: the writing bundle is
held. [core.md](core.md#latencies) has the latency of each of these. A result row leaves the array
`array_latency` cycles after its row went in ({PRESETS["v2"].array_latency} in `v2`), and results
follow each other without gaps; so push far ahead of the pops, and load the next weights while rows
go through these.

## Operations

*d*, *a*, *b*, *m* are the fields; operands in brackets may be left out: the offset is then 0, the
mask `m0`. A branch names its *target* by the number of the immediate that holds it. Beside the
faults listed, every operation can have ILLEGAL and CONFLICT. `a[s, l]` is the element of sublane s
and lane l.
"""

_ARRAY = """\
## Using the array

The array multiplies rows of lanes bf16 values by a weight tile *W* of lanes rows: element *n* of
a result row is the column sum of x[*k*]·W[*k*][*n*] over *k*, as [numerics.md](numerics.md),
section 7, adds it. Elements are rounded from fp32 to bf16 on the way in; results are fp32.

- **Weights.** A tile takes `tile_vregs` pushes of `weights`: the first gives rows 0 to sublanes - 1
  of *W*, sublane 0 first, and so on. With `weights_t` the same registers give its columns. All
  pushes of a load must be of one kind. Pushes load the *next* tile; the active one stays in use.
- **Swap.** `rows_swap` makes the next tile the active one, and then multiplies as `rows` does. It
  needs a complete load. From then on, further weights may be pushed. Rows pushed earlier still meet
  the weights of their time.
- **Results.** Each push of rows gives one register of results; sublane *i* of the result belongs to
  sublane *i* of the push. `pop` gets the oldest. At most `result_vregs` may be held, pushes of rows
  less pops. A push beyond that is FIFO_OVERFLOW; a pop when none is held is FIFO_UNDERFLOW. Both
  look at the state before the bundle: a pop makes no room for a push in the same bundle, and gets
  no result of it. A pop of a result that is still under way waits.
- To multiply fewer than lanes terms, pad rows with +0 and weights with -0: that changes no bit.
- Before another program uses the array, pop all results and swap what was loaded; `start` does not
  clear it.

## Using the transposer

`transpose_in` number *b* writes rows *b*·sublanes to (*b* + 1)·sublanes - 1 of its tile,
`transpose_out` number *b* reads columns of the same numbers, as sublanes. So the transpose of a
whole tile is `tile_vregs` operations in, in any order, then as many out. A `transpose_out` sees all
`transpose_in` before it; rows that were not written since keep what they had. A bundle has one
`misc` slot, so in and out alternate.

"""

_TWO_BUFFERS = """\
# In: s1, bytes from a block in HBM to the next but one; s3, blocks, at least 2.
    { misc.dma 0 | s0.add s2, s0, 0 }               # s2: descriptor of the load, 0 or 16
    { misc.dma 16 | s0.add s7, s0, 32 }             # s7: of the store, 32 or 48
    { misc.signal sem1, 2 | s0.add s4, s3, -2 }     # s4: loads still to be started
block:
    { misc.wait sem0, 1 | s0.shr s5, s2, 2 | s1.add s6, s0, 4 }     # loaded
    { misc.wait sem1, 1 }                           # the store before the last one is complete
double:
    { ld.load v1, s5 }                              # s5: address, s6: registers to go
    { v0.fadd v1, v1, v1 }
    { st.store v1, s5, 8 | s0.add s5, s5, 1 | s1.loop s6, double }
    { misc.dma s7 | s0.load s8, s7, 6 }
    { s0.add s8, s8, s1 }
    { s0.store s8, s7, 6 | s1.blt s4, 1, other }
    { s0.store s8, s2, 2 | s1.add s4, s4, -1 }
    { misc.dma s2 }
other:
    { s0.xor s2, s2, 16 | s1.xor s7, s7, 16 }
    { s1.loop s3, block }
    { misc.wait sem1, 2 | s1.halt }"""

_DMA = f"""\
## Transfers

`dma` starts a transfer: rows of lanes words are copied from one **space** to another while the
program goes on. What is copied stands in a **descriptor**, {DESCRIPTOR_WORDS} words of scalar
memory, which `sim.asm.descriptor` makes from named arguments. Spaces and descriptor:
"""

_DMA_RULES = f"""\
A *block* is a row on a side that lies in HBM, scalar or instruction memory, and a vector register,
sublanes rows, on any other. Block *k* of a side has the address

    address + (k mod run) * unit + (k div run) * stride

where *unit* is a row's bytes in HBM, 1 where addresses count vector registers, and lanes in scalar
and instruction memory; a run of 0 is one of all blocks. A side in scalar or instruction memory has
run 0. Row *k* of the source becomes row *k* of the destination, whatever the blocks of the two
sides are. So a transfer cuts a tile out of a matrix, or puts one into it, and blocks that another
run of the destination writes again keep what was written last.

**What is checked.** In this order: DMA_DESCRIPTOR, then DMA_ALIGNMENT, then DMA_RANGE, each of both
sides, as the table of [faults](#faults) says; before these, SMEM_RANGE if the descriptor is not all
in scalar memory. The number of rows is a multiple of sublanes if either side counts vector
registers. Every block is checked, also where the numbers are so large that they would not fit 32 or
64 bits. The faults are those of the bundle that has the `dma`, and precise: it does nothing then.

**When it happens.**

- The bundle is held until the descriptor is read and checked and there is room for the transfer;
  some are under way at once. The descriptor is read as the bundles before left it, and may be
  changed right afterwards. The data are not: the transfer comes after all that its bundle does.
- **Nothing but a semaphore says how far a transfer is.** Until it is complete, its source must not
  be written, and its destination neither read nor written, by bundles, by the other core, or by
  transfers of either. Whoever does gets the old words, the new ones, or some of each.
- The transfers of a core are completed in the order in which they were started: `wait` for the last
  one is enough. The next may read before the one ahead of it has written, so it must not be started
  before that one's semaphore was waited for if it needs what that one writes. Nothing is said about
  the order of transfers of different cores.
- Source and destination of one transfer must not overlap.
- When a transfer is complete, it is 1 that is added to its semaphore, to the other core's of that
  number, to both, or to none. By then all it wrote is there for everyone. What would carry a
  semaphore beyond 2\\*\\*32 - 1 is the fault SEMAPHORE of the core whose semaphore it is, as a
  signal by the host is.
- Vector registers and masks are for hosts to look at a core that stands. In a program, a transfer
  may read a register before a result that is under way has come: read the register by a bundle, as
  an operand, before.
- A program may overwrite bundles, an *overlay*, where it does not stand. Bundles behind the `wait`
  for such a transfer are the new ones.
- `halt`, a fault or a stop leave transfers under way. One that memory refuses goes on, but signals
  nothing: the core has the fault BUS_ERROR. Only a reset ends transfers early.

**The other core.** Its vector memory is a space, and `signal_other` adds to its semaphores. So a
core that has written `vmem` of the other, with `signal_other` in the descriptor, need not be asked;
and one that wants to know when its buffer is free again has a semaphore for it.

### Example: two buffers

Doubles *s3* blocks of four vector registers, which lie one after the other in HBM, and puts each
back to where it was. A block is computed while the next one is loaded and the one before stored.
Scalar memory has four descriptors, for even and for odd blocks; the program moves each of them on
to the next block but one.

| at | rows from | to | then adds 1 to |
|---|---|---|---|
| `smem[0]` | block 0 in HBM | `vmem[0]` and following | `sem0` |
| `smem[16]` | block 1 in HBM | `vmem[4]` and following | `sem0` |
| `smem[32]` | `vmem[8]` and following | block 0 in HBM | `sem1` |
| `smem[48]` | `vmem[12]` and following | block 1 in HBM | `sem1` |

```asm
{_TWO_BUFFERS}
```

Transfers complete in their order, so a semaphore for all loads and one for all stores are enough.
At first `sem1` counts the buffers that no store has to leave.

"""

_FAULTS = """\
## Faults

"""

_TEXT = """\
## Text form

`sim.asm.text.assemble` reads it, `sim.asm.disassembler.disassemble` and `Program.listing()` write
it.

    {grammar}

- A bundle may span lines. `#` starts a comment. A label names the next bundle; names that look like
  registers cannot be labels.
- Integers are decimal or `0x…`, from -2\\*\\*31 to 2\\*\\*32 - 1. A float ends in `f`, as `1.5f`,
  `-2e-3f`, and is rounded to fp32; `0f3FC00000` is one by its pattern.
- An integer from {low} to {high} needs no immediate. Other values, and labels, get immediates,
  equal values the same one, in the order of slots (as in the layout above) and operands. More than
  {count} are an error.
- `imm0=…` fixes an immediate, and `imm0` as an operand names it. `field=value` behind the operands
  sets a field that the operation ignores.
- `slot.illegal op=…, d=…` gives all fields of a slot as they are, and nothing is checked; the
  disassembler writes it for what is illegal, and `conflict` in its place where two slots write the
  same register. `reserved=…` sets the reserved bits. So every bundle has a text that assembles to
  its very bits.

In Python, `sim.asm.assembler` builds the same, with operations as methods of slots
({keywords} with an underscore):

```python
from sim.asm.assembler import Assembler, s, v

asm = Assembler()
asm.label("loop")
with asm.bundle() as b:
    b.v0.fadd(v[1], v[1], 1.5)
    b.ld.load(v[2], s[2], 8)
    b.s1.loop(s[1], "loop")
with asm.bundle() as b:
    b.s1.halt()
program = asm.assemble()
```

## Example

One layer, y = relu(x @ W + b), for one weight tile; x may have as many rows as the array holds
results for.

```asm
{example}
```

The loop over x could load and push a register every 4 cycles, since the push waits for its load. In
`v2` the array takes 8 cycles for a register, so it is busy in all of them. A longer x goes through
in pieces, and better still with pushes and pops in one loop, some registers apart.
"""

_EXAMPLE = """\
# In: vmem addresses of W (s1, lanes rows), x (s2), b (s4, in sublane 0), y (s5);
#     registers of x (s3, from 1 to result_vregs), registers of W (s6, tile_vregs).
    { ld.load v2, s4 | s0.add s7, s3, -1 }      # s7: registers of x behind the first
weights:
    { ld.load v1, s1 | s0.add s1, s1, 1 }
    { push.weights v1 | s1.loop s6, weights }
    { ld.load v1, s2 | s0.add s2, s2, 1 | misc.broadcast_sublane v2, v2, 0 }
    { push.rows_swap v1 | s1.beq s7, 0, results }
rows:
    { ld.load v1, s2 | s0.add s2, s2, 1 }
    { push.rows v1 | s1.loop s7, rows }
results:
    { pop.pop v3 }
    { v0.fadd v3, v3, v2 }
    { v0.fmax v3, v3, 0.0f }
    { st.store v3, s5 | s0.add s5, s5, 1 | s1.loop s3, results }
    { s1.halt }"""


def _spaces() -> list[str]:
    def sides(info: DmaSpaceInfo) -> str:
        return " and ".join(name for name, able in (
            ("source", info.source), ("destination", info.destination)) if able)

    return _table(
        ["code", "space", "what it is", "address", "block", "side"],
        [[space.value, space.name, info.meaning, info.address,
          "register" if info.vector else "row", sides(info)]
         for space, info in DMA_SPACES.items()])


def _descriptor() -> list[str]:
    rows: list[list[object]] = []
    position = 0
    for name, field in DESCRIPTOR.items():
        word, low = divmod(position, 32)
        words = f"{word}, {word + 1}" if field.width > 32 else str(word)
        rows.append([words, f"`{name}`", _range(low, field.width), _cell(field.meaning)])
        position += field.width
    return _table(["word", "field", "bits", "what it says"], rows)


def document() -> str:
    """The manual, as Markdown."""
    keywords = sorted({f"`{method_name(operation)}`" for operation in isa.OPERATIONS
                       if method_name(operation) != operation.name})
    text = _TEXT.format(
        grammar=_grammar().replace("\n", "\n    "), low=isa.INLINE_MIN, high=isa.INLINE_MAX,
        count=isa.IMMEDIATES, keywords=" and ".join(keywords), example=_EXAMPLE)
    lines = [
        _INTRODUCTION, *_state(), _STATE, *_sizes(),
        _LAYOUT, *_layout(),
        _ENCODING, *_operands(),
        _EXECUTION, *_operations(),
        _ARRAY + _DMA, *_spaces(), *_descriptor(),
        _DMA_RULES + _FAULTS + "\n".join(_table(["number", "fault", "cause"], (
            [fault.value, fault.name, _cell(isa.FAULTS[fault])] for fault in isa.Fault))),
        text,
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> None:
    """Writes the manual."""
    PATH.write_text(document(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
