"""Counters of a device: the causes of cycles, over several runs and resets."""

import numpy as np

from sim.asm.assembler import Program
from sim.asm.text import assemble
from systolith import Device
from verif.sim.driver.common import TINY, check_product


def test_counters_add_up_and_count_on(tiny: Device) -> None:
    a = np.ones((9, 4), np.float32)
    before = tiny.counters()
    tiny.matmul(a, np.ones((4, 4), np.float32))
    after = tiny.counters()
    rows = 12  # 5 rows for each core: 3 registers of 2
    assert after["mxu_active_cycles"] - before["mxu_active_cycles"] == rows
    assert after["cycles"] - before["cycles"] > rows
    # A core counts on between two looks at it, so the sum over the cores is within these.
    first = [tiny.counters(core) for core in (0, 1)]
    total = tiny.counters()
    last = [tiny.counters(core) for core in (0, 1)]
    for counters in (after, *first, total, *last):
        assert len(counters) == 8
        parts = sum(count for name, count in counters.items() if name != "cycles")
        # Halves and names are read one after the other.
        assert abs(counters["cycles"] - parts) < 500
    for name, count in total.items():
        assert sum(part[name] for part in first) <= count <= sum(part[name] for part in last)


def test_counters_go_on_after_a_reset(device: Device) -> None:
    check_product(device)
    before = [device.counters(core) for core in (0, 1)]
    assert all(counters["mxu_active_cycles"] for counters in before) == (device.backend == "rtl")
    for reset in (device.reset, lambda: device.reset(1)):
        reset()
        for core in (0, 1):
            after = device.counters(core)
            assert all(after[name] >= count for name, count in before[core].items())
            assert after["mxu_active_cycles"] == before[core]["mxu_active_cycles"]


PRODUCT = """{ push.weights v1 } { push.weights v1 } { push.rows_swap v1 } { pop.pop v1 }
             { s1.halt }"""


def test_a_run_tells_what_its_cycles_were_spent_on(device: Device) -> None:
    def spin(loops: int) -> Program:
        return assemble(f"{{ s0.add s1, s0, {loops} }} a: {{ s1.loop s1, a }} {{ misc.wait sem0, 1 "
                        "| s1.halt }", TINY)

    device.signal(0, 0)
    device.signal(1, 0)
    device.run({0: spin(900), 1: spin(4000)})
    # What was before does not count, and both count from about the same moment on.
    device.signal(1, 0)
    seen = device.run({1: spin(2000), 0: assemble(PRODUCT, TINY)})
    assert list(seen) == [1, 0]
    assert all(counters.keys() == device.counters().keys() for counters in seen.values())
    if device.backend == "golden":
        assert {count for counters in seen.values() for count in counters.values()} == {0}
        return
    for counters in seen.values():
        assert 2000 < counters["cycles"] < 2200
        assert counters["cycles"] == sum(counters.values()) - counters["cycles"]
    assert (seen[0]["mxu_active_cycles"], seen[1]["mxu_active_cycles"]) == (2, 0)
    assert (seen[0]["weight_load_cycles"], seen[1]["weight_load_cycles"]) == (4, 0)
    assert seen[1]["idle_cycles"] >= 2000
    waits = device.run({0: assemble("{ s1.halt }", TINY)})
    assert waits.keys() == {0}
    assert 0 < waits[0]["cycles"] < 200


def test_golden_backend_has_no_clock() -> None:
    with Device.open("tiny", backend="golden") as device:
        device.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
        assert set(device.counters().values()) == {0}
