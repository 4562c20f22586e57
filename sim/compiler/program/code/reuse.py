"""When a program has read its inputs, and when it begins to write its outputs.

An output may lie in the memory of an input if the program has read the whole input before it begins
to write the output. Times are numbers of bundles; a loop counts as a whole.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from sim.compiler.program.code.stream import Linear
from sim.compiler.program.code.transfers import DESTINATION, SOURCE

__all__ = ["Read", "Times", "times"]


@dataclass(frozen=True)
class Read:
    """A transfer that reads HBM.

    Attributes
    ----------
    first, end : int
        The bundles ``first`` to ``end - 1`` start the transfer.
    done : int
        Number of a bundle before which the code has waited for the transfer.
    """

    first: int
    end: int
    done: int


@dataclass(frozen=True)
class Times:
    """When a core uses the program's inputs and outputs.

    Attributes
    ----------
    read : tuple of int
        For each input, the number of a bundle before which all of it has been read.
    written : tuple of int
        For each output, the number of the first bundle that may write to it.
    """

    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()


def times(linear: Linear, reads: Sequence[Read], inputs: int, outputs: int) -> Times:
    """Return when code uses its inputs and outputs.

    Parameters
    ----------
    linear : Linear
        A core's code.
    reads : sequence of Read
        Transfers for which the code waits. An input that any other transfer reads counts as
        completely read only after the end of the program.
    inputs, outputs : int
        Numbers of inputs and outputs.
    """
    end = len(linear.words)
    read = {f"input{number}": 0 for number in range(inputs)}
    written = {f"output{number}": end for number in range(outputs)}
    reads = sorted(reads, key=lambda each: each.first)
    firsts = [each.first for each in reads]
    back = linear.branches[linear.branches[:, 2] <= linear.branches[:, 0]]
    for bundle, _, number in linear.transfers.tolist():
        for word, buffer in linear.descriptors[number].relocations:
            loops = back[(back[:, 2] <= bundle) & (bundle <= back[:, 0])]
            if word == SOURCE and buffer in read:
                at = bisect_right(firsts, bundle) - 1
                known = at >= 0 and bundle < reads[at].end
                read[buffer] = max(read[buffer], reads[at].done if known else end + 1,
                                   *(loops[:, 0] + 1).tolist())
            elif word == DESTINATION and buffer in written:
                written[buffer] = min(written[buffer], bundle, *loops[:, 2].tolist())
    for _, _, rows in linear.rows:
        # A kernel transfers these rows itself.
        if rows.buffer in read:
            read[rows.buffer] = end + 1
        elif rows.buffer in written:
            written[rows.buffer] = 0
    return Times(tuple(read.values()), tuple(written.values()))
