"""The plugin's own declarations of the PJRT C API are those of the public header."""

import importlib.util
import os
import pathlib
import re
import subprocess

import pytest

from sim.pjrt import library
from sim.verilated.toolchain import Toolchain

CPP = pathlib.Path(library.__file__).with_name("cpp")
RENAMED = {"Client_Create_Args": {"key_values", "more_key_values"},
           "ExecuteOptions": {"callbacks", "num_callbacks"},
           "NamedValue": set[str](), "Program": set[str]()}
"""Structs whose names differ from the header's, with fields that stand for several of its
fields."""


def header() -> pathlib.Path | None:
    """The public header: ``SYSTOLITH_PJRT_HEADER``, or the one of an installed TensorFlow."""
    chosen = os.environ.get("SYSTOLITH_PJRT_HEADER")
    if chosen:
        return pathlib.Path(chosen)
    spec = importlib.util.find_spec("tensorflow")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = list(pathlib.Path(folder).glob("include/xla/pjrt/c/pjrt_c_api.h"))
        if found:
            return found[0]
    return None


def own_structs(text: str) -> dict[str, list[str]]:
    """By struct of arguments, the names of its fields."""
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        if name in RENAMED or name.endswith("_Args"):
            fields = re.findall(r"(?:\(\*(\w+)\)\(.*\)|(\w+)(?:\[\d\])?);", body)
            found[name] = [pointer or plain for pointer, plain in fields]
    return found


def test_own_structs_are_found() -> None:
    structs = own_structs((CPP / "api.hpp").read_text())
    assert len(structs) > 80
    assert structs["Event_OnReady_Args"] == ["head", "event", "callback", "user_arg"]


def test_declarations_equal_the_header(tmp_path: pathlib.Path) -> None:
    path = header()
    if path is None:
        pytest.skip("no public header: install tensorflow_cpu, or set SYSTOLITH_PJRT_HEADER")
    public, own = path.read_text(), (CPP / "api.hpp").read_text()
    lines = [f'#include "{path}"', f'#include "{CPP / "api.hpp"}"',
             "namespace own = systolith::pjrt;",
             "static_assert(sizeof(own::Api) == sizeof(PJRT_Api));",
             "static_assert(offsetof(own::Api, functions) == "
             "offsetof(PJRT_Api, PJRT_Error_Destroy));"]
    for name, number in re.findall(r"^    (\w+) = (\d+),", own, re.MULTILINE):
        if f"PJRT_{name})" in public:
            lines.append(f"static_assert(offsetof(PJRT_Api, PJRT_{name}) == "
                         f"offsetof(own::Api, functions) + {number} * sizeof(void*));")
    for name, fields in own_structs(own).items():
        if name != "ExecuteOptions":
            lines.append(f"static_assert(sizeof(own::{name}) == sizeof(PJRT_{name}));")
        for field in fields:
            if field not in {"head", *RENAMED.get(name, ())} and not (
                    name == "Device_MemoryStats_Args" and field == "devices"):
                lines.append(f"static_assert(offsetof(own::{name}, {field}) == "
                             f"offsetof(PJRT_{name}, {field}));")
    assert len(lines) > 300
    source = tmp_path / "check.cpp"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([*Toolchain.find().cxx, "-std=c++20", "-fsyntax-only", str(source)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
