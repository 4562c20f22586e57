"""A timing model of training on 1 to 2,048 cores, calibrated from cycles in RTL.

    python -m tools.forecast            # predict, from the stored calibration
    python -m tools.forecast --measure  # calibrate first, in RTL

`torus` has what sums need at least, `sums` and `step` the two parts of the model, `samples` the
measured cycles, `calibrate` fits and validates, `measure` runs RTL, `charts` draws.
"""
