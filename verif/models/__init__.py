"""Models of the units' surroundings: stimulus, expected results and checks, free of simulators.

A model is given a unit's outputs cycle by cycle and gives the inputs. The tests in `verif.hdl` and
the cocotb benches in `verif.benches` use the same models; they only move pins.
"""
