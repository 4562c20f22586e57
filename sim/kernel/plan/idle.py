"""Idle tiles: which tiles need not be stepped, and why skipping them is exact.

The search finds a set of registers, the *active* ones, and a set of 1-bit tile inputs, the
*activity*, such that

    if all active registers and all activity inputs of a tile are 0, and so is the reset, then the
    clock edge leaves the tile's state as it is, whatever its other registers, memories and inputs
    hold.                                                                                        (1)

A tile is *idle* while all its active registers are 0.

**Proof of (1).** The next value of every register and the enable of every memory write are
expressions. The search substitutes 0 for the active registers, the activity inputs and the reset,
simplifies, and accepts the sets only if

- each active register's next value is the constant 0: an idle tile stays idle;
- every other register keeps its value. There are three cases: its next value is the register
  itself; its next value is its initial value, which it then always has; or it always equals a
  function of other registers, and its next value is that function of their values before the edge;
- each write enable is the constant 0.

Simplification only replaces expressions by equal ones, and assumes nothing about other registers,
memories and inputs. So (1) holds whatever they contain.

**The search.** It begins with all 1-bit inputs as activity. First it adds registers whose next
value becomes 0 if all registers found before are 0: a valid bit whose input is invalid, then the
valid bit of the next stage. Registers that still change, and registers that drive a neighbour's
activity input, may depend on each other in a circle. So all of them are assumed to be 0. Those that
would not stay 0 are dropped, until all that remain do. An input cannot be an activity input if a
register that may be 1 in an idle tile drives it; then the search starts again without that input.

**Skipping is exact.** The step (`sim.kernel.emit.step`) works on chunks of tiles and keeps a flag
for each. It skips a chunk if the flag of the chunk and those of its neighbours to the west and the
north are clear. In addition, the reset, the activity inputs that all tiles share, and the port bits
that drive activity inputs of the chunk must be 0.

- A clear flag means that all tiles of the chunk are idle. All flags are set at first. Stepping a
  chunk derives its flag from the new values of the active registers. A skipped
  chunk keeps its flag and these registers.
- Rows are stepped from the last to the first, and a row's flags are read before any of them is
  written. So all flags that are consulted are those before the edge.
- An activity input of a tile in a skipped chunk is therefore 0. It is a port bit that was tested,
  or the constant 0 beyond an edge without a port, or an active register of a neighbour. The
  neighbour lies in the same chunk or in one whose flag is clear.

So (1) applies to every tile of the chunk: stepping it would store what is already there. Outputs
are registers, so they do not change in a step that skips all chunks.
"""

from collections.abc import Iterable, Mapping, Sequence

from sim.kernel.ir import Node
from sim.kernel.plan.plan import RESET, Plan
from sim.kernel.transform import substitute

__all__ = ["idle_registers"]


def idle_registers(plan: Plan, updates: Sequence[Node], enables: Iterable[Node],
                   followed: Mapping[int, Node]) -> tuple[list[int] | None, list[str]]:
    """Finds the active registers and the activity inputs; None and ``[]`` if the search fails.

    Parameters
    ----------
    plan : Plan
        Only its registers and inputs need to be set.
    updates : sequence of Node
        Next value of each register.
    enables : iterable of Node
        Enables of all memory writes.
    followed : mapping of int to Node
        For each register that always equals a function of other registers, that function.
    """
    activity = [name for name, source in plan.inputs.items()
                if source.width == 1 and name != RESET]
    while True:
        active = _Search(plan, updates, list(enables), followed, activity).active()
        if active is None:
            return None, []
        silent = [name for name in activity
                  if plan.inputs[name].source is None or plan.inputs[name].source in active]
        if silent == activity:
            return sorted(active), activity
        activity = silent


class _Search:
    """The search for active registers, given the activity inputs."""

    def __init__(self, plan: Plan, updates: Sequence[Node], enables: Sequence[Node],
                 followed: Mapping[int, Node], activity: Sequence[str]) -> None:
        self._plan = plan
        self._values = [*updates, *enables]
        self._followed = followed
        self._activity = activity
        reset = [RESET] if RESET in plan.tile.inputs else []
        self._inputs = [plan.tile.inputs[name] for name in (*activity, *reset)]

    def active(self) -> list[int] | None:
        """The active registers; None if a tile can change while all active registers are 0."""
        active: list[int] = []
        while True:
            values = self._when_zero(active, self._values)
            found = [index for index in self._changing(values, active) if _is_zero(values[index])]
            if not found:
                break
            active += found
        sources = {self._plan.inputs[name].source for name in self._activity}
        changing = self._changing(values, active)
        active += [index for index in range(len(self._plan.registers)) if index not in active
                   and (index in sources or index in changing)]
        while True:
            values = self._when_zero(active, self._values)
            kept = [index for index in active if _is_zero(values[index])]
            if kept == active:
                break
            active = kept
        enables = values[len(self._plan.registers):]
        if self._changing(values, active) or not all(map(_is_zero, enables)):
            return None
        return active

    def _when_zero(self, active: Iterable[int], values: Sequence[Node]) -> list[Node]:
        """The ``values``, simplified under the assumption that certain inputs and registers are 0.

        These are the activity inputs, the reset, and the registers in ``active``.
        """
        graph = self._plan.graph
        leaves = [*self._inputs, *(self._plan.registers[index].leaf for index in active)]
        return substitute(graph, values, {leaf: graph.bit(0) if leaf.is_bit else graph.const(0)
                                          for leaf in leaves})

    def _changing(self, values: Sequence[Node], active: Sequence[int]) -> list[int]:
        """Registers outside ``active`` that may change at a clock edge.

        ``values`` are the next values of all registers if those in ``active`` are 0 (`_when_zero`).
        """
        return [index for index, register in enumerate(self._plan.registers)
                if index not in active and values[index] is not register.leaf
                and not self._constant(index) and not self._follows(index, values, active)]

    def _constant(self, index: int) -> bool:
        """Whether register ``index`` always has its initial value."""
        value = self._values[index]
        return value.op in ("const", "bit") and value.attr == self._plan.registers[index].init

    def _follows(self, index: int, values: Sequence[Node], active: Sequence[int]) -> bool:
        """Whether register ``index`` keeps its value because it always follows other registers.

        Such a register always equals a function of other registers (``_followed``). It keeps its
        value if ``values[index]``, its next value, is that function of their present values, under
        the assumption that the registers in ``active`` are 0.
        """
        if index not in self._followed:
            return False
        present, = self._when_zero(active, [self._followed[index]])
        return present is values[index]


def _is_zero(value: Node) -> bool:
    return value.op in ("bit", "const") and not value.attr
