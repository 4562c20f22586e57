"""Replays of sums over a torus: when each step of the cores' programs ends.

`events` has links and who waits for them; `rings` replays `systolith.AllReduce`, `streamed` the
sums that the compiler makes.
"""
