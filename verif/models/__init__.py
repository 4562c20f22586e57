"""Models of the units' surroundings: stimulus, expected results and checks, free of simulators.

In each cycle, a model gets a unit's outputs and returns the unit's inputs. The tests in `verif.hdl`
and the cocotb benches in `verif.benches` use the same models, and themselves only drive pins.
"""
