"""Operations of elements as sequences of the vector unit's operations.

`expression` records such sequences; the other modules hold the sequences, by what they compute.
`table` finds the one for an operation of a graph.
"""
