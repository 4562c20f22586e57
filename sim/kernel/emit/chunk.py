"""Body of the C++ function that steps one chunk: 64 adjacent tiles of a row."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from sim.kernel.emit.lanes import LaneValues
from sim.kernel.emit.layout import register_pointer, storage_type
from sim.kernel.emit.rare import rare_bits, without
from sim.kernel.emit.values import ChunkBits, Constants, Scope, UniformValues
from sim.kernel.ir import Node
from sim.kernel.plan.plan import Group, MemoryWrite, Plan, Update, lane_for, storage

__all__ = ["chunk_body"]


def chunk_body(plan: Plan, uniform: UniformValues, constants: Constants, *,
               partial: bool) -> list[str]:
    """C++ statements that step chunk ``c`` of row ``row`` of the grid, whose state is ``g``.

    They step only the tiles whose bit in the 64-bit mask ``valid`` is set. They return a 64-bit
    value that is zero only if all tiles of the chunk are idle afterwards.

    Parameters
    ----------
    plan : Plan
        What the clock edge does.
    uniform, constants
        Collect the uniform values and constants that the statements need.
    partial : bool
        Whether the last chunk of a row has fewer than 64 tiles, so that ``valid`` is needed.
    """
    return _Chunk(plan, uniform, constants, partial).lines()


class _Chunk:
    """Writes the statements of `chunk_body`, which has the same arguments."""

    def __init__(self, plan: Plan, uniform: UniformValues, constants: Constants,
                 partial: bool) -> None:
        self._plan = plan
        self._bits = ChunkBits(plan, uniform)
        self._scope = Scope(plan, uniform, self._bits, constants)
        self._partial = partial
        self._valid = " & valid" if partial else ""

    def lines(self) -> list[str]:
        # The code that uses bits is generated first, as it adds their computation to `_bits.lines`.
        enables = self._enables()
        groups = [line for group in self._plan.groups for line in self._group(group)]
        late = [line for group in self._plan.groups if group.late for line in self._late(group)]
        stores = self._bit_registers()
        return [*self._bits.lines, *stores, *enables, *groups, *late,
                f"return {' | '.join(self._active()) or '0'};"]

    def _bit_registers(self) -> list[str]:
        """C++ statements that update all registers whose next values are pure bits (`Plan.bits`).

        All next values are computed before any is stored, since they may depend on each other's
        registers.
        """
        values = [f"const uint64_t next{index} = {self._bits.name(value)}{self._valid};"
                  for index, value in self._plan.bits]
        return values + [f"g.b{index}[row + 1][c] = next{index};" for index, _ in self._plan.bits]

    def _active(self) -> list[str]:
        """C++ expressions, one for each register in `Plan.active`, that test the chunk's new state.

        An expression is zero if and only if its register is 0 in all tiles of the chunk. If all
        expressions are zero, all tiles of the chunk are idle.
        """
        plan = self._plan
        direct = {index for index, _ in plan.bits}
        active = []
        for index in plan.active or []:
            if plan.registers[index].width > 1:
                place = register_pointer(plan, index, lane="64 * c")
                active.append(f"uint64_t(any_set({place}))")
            else:
                active.append(f"next{index}" if index in direct else f"g.b{index}[row + 1][c]")
        return active

    def _enables(self) -> list[str]:
        """C++ statements that compute `Plan.lane_enables` for the chunk, vector by vector.

        Enable i becomes the 64-bit mask ``enable{i}``, with one bit for each tile.
        """
        enables = self._plan.lane_enables
        if not enables:
            return []
        lane = lane_for(self._plan, [(node, 1) for node in enables])
        values = LaneValues(self._scope, lane, [(node, 1) for node in enables])
        for index, node in enumerate(enables):
            self._bits.define(node, f"enable{index}")
        return [*(f"uint64_t enable{index} = 0;" for index in range(len(enables))),
                *values.shared.values(),
                f"for (ptrdiff_t s = 64 - LANES<{lane}>; s >= 0; s -= LANES<{lane}>) {{",
                f"  const uint64_t present = part<{lane}>(valid, s);",
                "  if (!present) continue;",
                "  [[maybe_unused]] const ptrdiff_t lane = 64 * c + s;",
                *(f"  {line}" for line in values.lines),
                *(f"  put_at(enable{index}, s, present, {values.name(node)});"
                  for index, node in enumerate(enables)), "}"]

    def _group(self, group: Group) -> list[str]:
        """C++ statements that execute a group's updates and memory writes, vector by vector.

        They skip vectors in which no tile enables the group; if all tiles share the enable, they
        skip all vectors or none.
        """
        lane = group.lane
        if self._all(group.enable):
            condition = self._scope.uniform.name(group.enable)
            inner = [f"[[maybe_unused]] constexpr uint64_t present = FULL<{lane}>;"]
        else:
            condition = f"const uint64_t enable = {self._bits.name(group.enable)} & valid"
            inner = [f"const uint64_t present = part<{lane}>(enable, s);",
                     "if (!present) continue;"]
        shared, vector = self._vector(group)
        inner += ["[[maybe_unused]] const ptrdiff_t lane = 64 * c + s;", *vector]
        return [*(f"{line};" for line in self._buffers(group)),
                f"if ({condition}) {{",
                *(f"  {line}" for line in shared),
                f"  for (ptrdiff_t s = 64 - LANES<{lane}>; s >= 0; s -= LANES<{lane}>) {{",
                *(f"    {line}" for line in inner), "  }", "}"]

    def _all(self, enable: Node) -> bool:
        """Whether one bit enables all 64 tiles of each chunk, so that vectors need no masks.

        Not if some chunks have fewer tiles.
        """
        return self._plan.uniform(enable) and not self._partial

    def _vector(self, group: Group) -> tuple[list[str], list[str]]:
        """C++ statements that execute a group's updates and memory writes.

        There are two lists: statements to execute once, before all vectors (those of
        `LaneValues.shared` that are needed), and those for each vector. If no rare bit is set in
        the tiles of a vector, the latter store simplified values, which are cheaper to compute
        (`sim.kernel.emit.rare`).
        """
        graph, roots = self._plan.graph, list(group.values())
        rare = rare_bits(graph, [value for value, _ in roots], self._outside)
        values = LaneValues(self._scope, group.lane, roots)
        stores = self._stores(group, [value for value, _ in roots], values)
        if not rare:
            lines = [*values.lines, *stores]
            return _needed(values.shared, lines), lines
        simple = without(graph, [value for value, _ in roots], rare)
        masks = [mask for _, mask in roots]
        fast = LaneValues(self._scope, group.lane, [
            *zip(simple, masks, strict=True), *((bit, 1) for bit in rare)])
        some = functools.reduce(lambda one, other: f"orb({one}, {other})", map(fast.name, rare))
        lines = [*fast.lines, f"if (any({some})) [[unlikely]] {{",
                 *(f"  {line}" for line in (*values.lines, *stores)), "} else {",
                 *(f"  {line}" for line in self._stores(group, simple, fast)), "}"]
        return _needed(fast.shared | values.shared, lines), lines

    def _outside(self, node: Node) -> bool:
        return self._plan.pure(node) or self._plan.uniform(node)

    def _stores(self, group: Group, roots: Sequence[Node], values: LaneValues) -> list[str]:
        """C++ statements that store the results of a group's updates and memory writes.

        ``roots`` are the group's values in the order of `Group.values`, or their simplified
        versions; ``values`` gives the C++ name of each.
        """
        names = map(values.name, roots)
        lines = []
        for index, task in enumerate(group.tasks):
            if task.enable is group.enable:
                present = "present"
            else:
                present = f"present{index}"
                own = self._bits.name(task.enable)
                lines.append(f"const uint64_t {present} = part<{group.lane}>({own}{self._valid}, "
                             "s);")
            lines.append(self._update(group, task, next(names), present)
                         if isinstance(task, Update) else
                         self._write(group, task, names, present))
        return lines

    def _update(self, group: Group, update: Update, value: str, present: str) -> str:
        """C++ statement that stores a register's new value.

        ``value`` is the C++ expression of that value. ``present`` is the C++ name of a mask of the
        tiles that are updated. If the group stores late (`Group.late`), the value goes to a buffer,
        which `_late` copies to the register.
        """
        if update.width == 1:
            place = self._buffer(group, update) if group.late else \
                f"g.b{update.register}[row + 1][c]"
            return f"put_at({place}, s, {present}, {value});"
        if group.late:
            # All lanes are stored; `_late` does not copy those that are not present.
            return f"store(&{self._buffer(group, update)}[s], {value});"
        return f"store({register_pointer(self._plan, update.register)}, {present}, {value});"

    def _write(self, group: Group, write: MemoryWrite, names: Iterator[str], present: str) -> str:
        """C++ statement that executes ``write``, a memory write of ``group``.

        ``names`` yields the C++ names of the address, of the data and, if the write has a bit mask,
        of that mask. ``present`` is the C++ name of a mask of the tiles that write.
        """
        memory = f"g.m{write.memory}[row]"
        address, data = next(names), next(names)
        mask = "" if write.mask is None else f", {next(names)}"
        if self._plan.uniform(write.address) and write.mask is None:
            return (f"store(&{memory}[{self._scope.uniform.name(write.address)}][lane], "
                    f"{present}, {data});")
        return (f"scatter(&{memory}[0][lane], LANES_PER_ROW, {address}, "
                f"{present}, {data}{mask});")

    # Groups that store late: other groups still read the old values of their registers.

    def _buffer(self, group: Group, update: Update) -> str:
        """Name of the C++ variable that buffers the new value of ``update``'s register.

        ``group`` is the update's group, which stores late.
        """
        return f"late{self._plan.groups.index(group)}_{update.register}"

    def _buffers(self, group: Group) -> list[str]:
        """C++ declarations of the buffers of a group; none if the group does not store late."""
        if not group.late:
            return []
        return [f"uint64_t {self._buffer(group, update)} = 0" if update.width == 1 else
                f"alignas(64) {storage_type(update.width)} {self._buffer(group, update)}[64]"
                for update in group.updates]

    def _late(self, group: Group) -> list[str]:
        """C++ statements that copy buffers of ``group``, which stores late, to its registers.

        All updates of such a group have the group's enable.
        """
        every = self._all(group.enable)
        enable = self._scope.uniform.name(group.enable) if every else \
            f"({self._bits.name(group.enable)}) & valid"
        inner = []
        for update in group.updates:
            assert update.enable is group.enable
            kept = self._buffer(group, update)
            if update.width == 1:
                place = f"g.b{update.register}[row + 1][c]"
                inner.append(f"{place} = {kept};" if every else
                             f"{place} = ({place} & ~({enable})) | ({kept} & ({enable}));")
                continue
            lane = storage(update.width)
            place = register_pointer(self._plan, update.register, lane="64 * c + s")
            present = "" if every else f"part<{lane}>({enable}, s), "
            inner += [f"for (ptrdiff_t s = 0; s < 64; s += LANES<{lane}>)",
                      f"  store({place}, {present}load<{lane}>(&{kept}[s]));"]
        return [f"if ({enable}) {{", *(f"  {line}" for line in inner), "}"]


def _needed(shared: Mapping[str, str], lines: Sequence[str]) -> list[str]:
    """The statements of ``shared`` whose C++ variables, its keys, occur in ``lines``."""
    used = {name for line in lines for name in re.findall(r"\bv\d+\b", line)}
    return [statement for name, statement in shared.items() if name in used]
