"""Replays of sums over a torus: when each step of the cores' programs ends.

`events` has the links and the cores that wait for them; `rings` replays `systolith.AllReduce`, and
`streamed` the sums that the compiler makes.
"""
