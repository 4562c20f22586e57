"""Addresses: affine indexes become a scalar register plus an offset.

The part of an address that grows with a loop lives in a register that the loop advances
(`Loop.steps`); all addresses that differ only by a constant share it. Parts that do not change in a
loop are computed before the loop. The constant part becomes the operation's offset.
"""

from dataclasses import dataclass, field
from itertools import count

from hdl.isa import ScalarOp
from sim.compiler.machine.ir import (
    ZERO,
    Block,
    Branch,
    Loop,
    LoopVariable,
    MachineCode,
    Op,
    SReg,
    Term,
    operations,
    scalar_operation,
)

__all__ = ["lower_addresses"]


_ADD, _MUL = scalar_operation(ScalarOp.ADD), scalar_operation(ScalarOp.MUL)
_Terms = frozenset[tuple[Term, int]]


@dataclass
class _Scope:
    """A block of code (operations, loops and branches) under construction.

    ``loop`` is the loop whose body the block is. For a block of a branch, ``loop`` is None and
    ``parent`` is the scope that contains the branch.
    """

    parent: "_Scope | None"
    loop: Loop | None
    written: frozenset[SReg]
    block: Block = field(default_factory=list)
    known: dict[_Terms, SReg] = field(default_factory=dict)


def lower_addresses(code: MachineCode, *, reduced: bool = True) -> MachineCode:
    """Replace the indexes of code by scalar registers and offsets.

    Operations keep their `Access`, which the analysis of dependences needs.

    Parameters
    ----------
    code : MachineCode
    reduced : bool
        If True, a loop advances a register for each address that changes in it. If False, it
        advances only its variable, and each address is computed where it is used, which takes more
        operations but fewer registers.
    """
    numbers = count(code.registers + 1)
    scope = _Scope(None, None, frozenset())
    _Lowering(numbers, reduced).lower(code.body, scope)
    return MachineCode(code.config, scope.block, next(numbers))


class _Lowering:
    """Replaces indexes by scalar registers and offsets, block by block.

    Methods that compute a register append their code to the block of the scope ``scope``, or of a
    scope around it.
    """

    def __init__(self, numbers: "count[int]", reduced: bool) -> None:
        self._numbers = numbers
        self._reduced = reduced

    def lower(self, block: Block, scope: _Scope) -> None:
        """Append the items of a block, with their indexes lowered, to the block of ``scope``."""
        for item in block:
            if isinstance(item, Op):
                self._operation(item, scope)
            elif isinstance(item, Loop):
                self._loop(item, scope)
            else:
                branch = Branch(item.condition)
                for old, new in ((item.then, branch.then), (item.otherwise, branch.otherwise)):
                    self.lower(old, _Scope(scope, None, frozenset(), new))
                scope.block.append(branch)
                self._forget(scope, _written(item.then) | _written(item.otherwise))

    def _operation(self, op: Op, scope: _Scope) -> None:
        if op.access is not None:
            address = op.access.address
            base = self._register(frozenset(address.terms.items()), scope)
            op = Op(op.operation, (op.operands[0], base, _word(address.constant), *op.operands[3:]),
                    op.access)
        scope.block.append(op)
        written = {value for value in op.writes if isinstance(value, SReg)}
        if written:
            self._forget(scope, written)

    def _loop(self, item: Loop, scope: _Scope) -> None:
        written = _written(item.body)
        self._forget(scope, written)
        loop = Loop(item.variable, item.count, again=item.again)
        self.lower(item.body, _Scope(scope, loop, frozenset(written), loop.body))
        scope.block.append(loop)

    def _register(self, terms: _Terms, scope: _Scope) -> SReg:
        """Return a scalar register that holds the sum of the terms, for use in ``scope``.

        Append the code that computes it, unless such a register is already known.
        """
        if not terms:
            return ZERO
        if not self._reduced:
            return self._here(terms, scope)
        known: _Scope | None = scope
        while known is not None:
            if terms in known.known:
                return known.known[terms]
            known = None if known.loop is not None else known.parent
        body = scope
        while body.loop is None and body.parent is not None:
            body = body.parent
        if body.loop is None:
            return self._compute(terms, scope)
        fixed = frozenset(term for term in terms if term[0] not in body.written)
        if fixed == terms:
            return self._fixed(terms, body)
        return self._sum(terms - fixed, self._register(fixed, scope), scope, terms)

    def _here(self, terms: _Terms, scope: _Scope) -> SReg:
        """Write a sum of terms at the end of the scope's block; return the register that has it."""
        total = ZERO
        for term, factor in sorted(terms, key=lambda pair: pair[0].number):
            value = term if isinstance(term, SReg) else self._variable(term, scope)
            if factor != 1:
                product = self._new()
                scope.block.append(Op(_MUL, (product, value, _word(factor))))
                value = product
            if total is not ZERO:
                before, total = total, self._new()
                scope.block.append(Op(_ADD, (total, before, value)))
            else:
                total = value
        return total

    def _variable(self, variable: LoopVariable, scope: _Scope) -> SReg:
        """Return the register that holds the variable of a loop around ``scope``."""
        body = scope
        while body.loop is None or body.loop.variable is not variable:
            assert body.parent is not None, "a loop variable is used outside of its loop"
            body = body.parent
        terms = frozenset({(variable, 1)})
        return body.known[terms] if terms in body.known else self._fixed(terms, body)

    def _fixed(self, terms: _Terms, body: _Scope) -> SReg:
        """Return a register with a sum of terms, computed before the loop whose scope is ``body``.

        Only one term can change in this loop: the loop's own variable. If the sum includes that
        variable, the loop advances the register in each iteration.
        """
        loop, outside = body.loop, body.parent
        assert loop is not None
        assert outside is not None
        steps = [factor for term, factor in terms if term is loop.variable]
        outer = self._register(frozenset(term for term in terms if term[0] is not loop.variable),
                               outside)
        if steps:
            register = self._new()
            outside.block.append(Op(_ADD, (register, outer, 0)))
            loop.steps.append((register, steps[0]))
            outer = register
        body.known[terms] = outer
        return outer

    def _compute(self, terms: _Terms, scope: _Scope) -> SReg:
        return self._sum(terms, ZERO, scope, terms)

    def _sum(self, terms: _Terms, start: SReg, scope: _Scope, whole: _Terms) -> SReg:
        """Append code that adds ``terms`` to ``start``; return the register with the sum.

        The scope records the register, so that the sum is computed once. ``whole`` has all terms of
        the sum: ``terms``, and those that ``start`` already contains.
        """
        total = start
        for term, factor in sorted(terms, key=lambda pair: pair[0].number):
            assert isinstance(term, SReg), "a loop variable is used outside of its loop"
            product = term
            if factor != 1:
                product = self._new()
                scope.block.append(Op(_MUL, (product, term, _word(factor))))
            if total is not ZERO:
                before, total = total, self._new()
                scope.block.append(Op(_ADD, (total, before, product)))
            else:
                total = product
        if total not in dict(terms):
            scope.known[whole] = total
        return total

    def _forget(self, scope: _Scope | None, written: set[SReg]) -> None:
        """Forget the sums that depend on a register in ``written``.

        ``scope`` and all scopes around it forget these sums.
        """
        while scope is not None and written:
            scope.known = {terms: register for terms, register in scope.known.items()
                           if not any(term in written for term, _ in terms)}
            scope = scope.parent

    def _new(self) -> SReg:
        return SReg(next(self._numbers))


def _written(block: Block) -> set[SReg]:
    return {register for op in operations(block) for register in op.writes
            if isinstance(register, SReg)}


def _word(value: int) -> int:
    return value & 0xFFFFFFFF
