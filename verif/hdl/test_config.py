"""The parameters: presets, checks, derived values."""

import dataclasses
from typing import Any

import pytest

from hdl.config import PRESETS, Config


def test_presets_are_those_of_the_documentation() -> None:
    assert {name: (c.array, c.lanes, c.sublanes, c.cores, c.vmem_bytes)
            for name, c in PRESETS.items()} == {
        "tiny": (4, 4, 2, 2, 8 << 10),
        "small": (8, 8, 4, 2, 64 << 10),
        "v2": (128, 128, 8, 2, 16 << 20),
        "fpga": (4, 4, 1, 1, 64 << 10),
    }


def test_memory_of_presets() -> None:
    assert {name: (c.row_bytes, c.hbm_bytes, c.hbm_channels, c.channel_bytes, c.hbm_rows,
                   c.hbm_address_bits) for name, c in PRESETS.items()} == {
        "tiny": (16, 1 << 20, 1, 16, 1 << 16, 20),
        "small": (32, 16 << 20, 2, 16, 1 << 19, 23),
        "v2": (512, 4 << 30, 4, 128, 1 << 23, 30),
        "fpga": (16, 16 << 20, 1, 16, 1 << 20, 24),
    }
    assert (Config().hbm_bytes, Config().hbm_channels) == (4 << 30, 4)


def test_an_array_needs_no_rows_that_fit_channels() -> None:
    config = Config(array=100, sublanes=1, vmem_bytes=400, hbm_bytes=4096, hbm_channels=32)
    assert (config.row_bytes, config.hbm_rows) == (400, 10)


def test_preset_takes_changes() -> None:
    assert Config.preset("tiny", mac_latency=5) == dataclasses.replace(
        PRESETS["tiny"], mac_latency=5)


@pytest.mark.parametrize(("parameter", "value", "error", "message"), [
    ("array", 1, ValueError, "array must be from 2 to 256, not 1"),
    ("array", 257, ValueError, "array must be from 2 to 256, not 257"),
    ("array", 4.0, TypeError, "array must be an integer, not 4.0"),
    ("array", True, TypeError, "array must be an integer, not True"),
    ("mac_latency", 0, ValueError, "mac_latency must be from 1 to 6, not 0"),
    ("mac_latency", 7, ValueError, "mac_latency must be from 1 to 6, not 7"),
    ("issue_cycles", 2, ValueError, "issue_cycles must be 1 or 3, not 2"),
    ("cores", 3, ValueError, "cores must be from 1 to 2, not 3"),
    ("sublanes", 0, ValueError, "sublanes must be from 1 to 8, not 0"),
    ("vmem_bytes", 1000, ValueError, r"multiple of one vector register \(32 bytes\), not 1000"),
    ("hbm_bytes", 2048, ValueError, "hbm_bytes must be from 4096 to 1099511627776, not 2048"),
    ("hbm_bytes", 3 << 20, ValueError, "hbm_bytes must be a power of two, not 3145728"),
    ("hbm_bytes", 2.0**20, TypeError, "hbm_bytes must be an integer, not 1048576.0"),
    ("hbm_channels", 0, ValueError, "hbm_channels must be from 1 to 32, not 0"),
    ("hbm_channels", 64, ValueError, "hbm_channels must be from 1 to 32, not 64"),
    ("hbm_channels", 6, ValueError, "hbm_channels must be a power of two, not 6"),
    ("link_bytes", 2, ValueError, r"power of two that divides row_bytes \(16\), at least 4, not 2"),
    ("link_bytes", 1024, ValueError, "link_bytes must be from 0 to 512, not 1024"),
    ("link_bytes", 12, ValueError, "link_bytes must be 0 or a power of two that divides .* not 12"),
    ("link_bytes", 32, ValueError, "link_bytes must be 0 or a power of two that divides .* not 32"),
    ("link_bytes", -4, ValueError, "link_bytes must be from 0 to 512, not -4"),
    ("lanes", 4, TypeError, "parameter must be one of array, .*, not 'lanes'"),
])
def test_bad_parameter_is_named(parameter: str, value: Any, error: type[Exception],
                                message: str) -> None:
    with pytest.raises(error, match=message):
        Config.preset("tiny", **{parameter: value})


@pytest.mark.parametrize(("name", "error"), [("v3", ValueError), (2, TypeError)])
def test_bad_preset_is_named(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=repr(name)):
        Config.preset(name)


@pytest.mark.parametrize("mac_latency", range(1, 7))
@pytest.mark.parametrize("array", [2, 3, 16, 100, 256])
def test_memories_hold_what_the_skew_keeps_waiting(array: int, mac_latency: int) -> None:
    config = Config(array=array, sublanes=1, vmem_bytes=4 * array, mac_latency=mac_latency)
    assert config.row_skew == max(1, mac_latency - 1)
    assert config.operand_depth > config.row_skew * (array - 1) + 2
    assert config.result_depth > config.array_latency
