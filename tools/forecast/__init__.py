"""A timing model of training on 1 to 2,048 cores, calibrated from cycles in RTL.

    python -m tools.forecast            # predict, from the stored calibration
    python -m tools.forecast --measure  # calibrate first, in RTL

Its parts are, from the bottom up: `torus`, the shapes of tori; `replay`, the steps of sums over
them; `links`, the cycles of `systolith.AllReduce`; `sums`, the cycles of compiled sums; `step`,
steps of training. `samples` has the measured cycles, `calibrate` fits and validates, `measure` runs
RTL, `charts` draws.
"""
