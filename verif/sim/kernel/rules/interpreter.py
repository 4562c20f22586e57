"""Reference interpretation of expressions: plain arithmetic on Python's integers."""

from collections.abc import Mapping, Sequence

from sim.kernel.ir import ALL, Node, topological

__all__ = ["BIT_OPS", "COMPARISONS", "WORD_OPS", "evaluate"]

WORD_OPS = {
    "and_": lambda x, y: x & y,
    "or_": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "shl": lambda x, y: x << y,
    "shr": lambda x, y: x >> y,
    "shlv": lambda x, y: x << y,
    "shrv": lambda x, y: x >> y,
}
BIT_OPS = {
    "andb": lambda x, y: x & y,
    "orb": lambda x, y: x | y,
    "xorb": lambda x, y: x ^ y,
}
COMPARISONS = {"eq": lambda x, y: int(x == y), "ltu": lambda x, y: int(x < y)}


def leading_zeros(value: int, width: int, most: int) -> int:
    """Number of leading zeros of a value of ``width`` bits, at most ``most``."""
    for place in range(most):
        if place < width and value >> (width - 1 - place) & 1:
            return place
    return most


def evaluate(roots: Sequence[Node], leaves: Mapping[Node, int]) -> list[int]:
    """Values of the nodes ``roots``, given the values of the leaves.

    Distances of shifts must be small: Python's integers have no fixed width, so a value that is
    shifted far to the left would need much memory.
    """
    values: dict[Node, int] = {}
    for node in topological(roots):
        args = [values[arg] for arg in node.args]
        match node.op:
            case "const" | "bit":
                value = node.number
            case "leaf" | "leafb":
                value = leaves[node]
            case "sel" | "selb":
                value = args[1] if args[0] else args[2]
            case "notb":
                value = 1 - args[0]
            case "test":
                value = int(bool(args[0] & node.number))
            case "eq" | "ltu":
                value = COMPARISONS[node.op](*args)
            case "clz":
                value = leading_zeros(args[0], *node.counted)
            case "shl" | "shr":
                value = WORD_OPS[node.op](args[0], node.number)
            case "andb" | "orb" | "xorb":
                value = BIT_OPS[node.op](*args)
            case "and" | "or":
                value = WORD_OPS[f"{node.op}_"](*args)
            case _:
                value = WORD_OPS[node.op](*args)
        values[node] = value & ALL
    return [values[root] for root in roots]
