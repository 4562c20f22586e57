"""The generator of `systolith.core`: writes a chip's Verilog, and a core file that lists it.

    python tools/fusesoc_generator.py INPUT

FuseSoC starts it with a YAML file, in the folder where the results belong.
"""

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

# FuseSoC starts the file as a script, from a folder of its own.
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from hdl.config import PRESETS, Config  # noqa: E402
from hdl.lint import LINT_WAIVERS  # noqa: E402
from hdl.target import Target  # noqa: E402
from hdl.verilog import export  # noqa: E402

__all__ = ["generate", "main"]

_WAIVERS = "lint.vlt"


def generate(core: str, parameters: Mapping[str, Any], folder: pathlib.Path) -> pathlib.Path:
    """Write Verilog and a core file to ``folder``; return the path of the core file.

    Parameters
    ----------
    core : str
        Name of the core to write: vendor, library, name and version.
    parameters : mapping of str to str
        ``preset``, the name of a configuration, and ``target``, that of a technology.
    folder : pathlib.Path

    Raises
    ------
    ValueError
        If a parameter is missing, unknown, or has an unknown value.
    """
    allowed = {"preset": tuple(PRESETS), "target": tuple(map(str, Target))}
    if set(parameters) != set(allowed):
        raise ValueError(f"parameters must be {', '.join(allowed)}, not "
                         f"{', '.join(parameters) or 'none'}")
    for name, values in allowed.items():
        if parameters[name] not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, not "
                             f"{parameters[name]!r}")
    design = export(Config.preset(parameters["preset"]), Target(parameters["target"]))
    files: list[Any] = []
    for name, text in design.sources.items():
        (folder / f"{name}.v").write_text(text)
        files.append(f"{name}.v")
    (folder / _WAIVERS).write_text(f"`verilator_config\n{LINT_WAIVERS}")
    files.append({_WAIVERS: {"file_type": "vlt"}})
    path = folder / "systolith_verilog.core"
    # JSON is YAML.
    path.write_text("CAPI=2:\n" + json.dumps({
        "name": core, "filesets": {"rtl": {"files": files, "file_type": "systemVerilogSource"}},
        "targets": {"default": {"filesets": ["rtl"]}}}, indent=1))
    return path


def main() -> int:
    """Run the command line; return 1 if the parameters are wrong."""
    yaml = importlib.import_module("yaml")  # FuseSoC brings it.
    parser = argparse.ArgumentParser(description="Generate Verilog for FuseSoC.")
    parser.add_argument("input", type=pathlib.Path, help="file from FuseSoC")
    found = yaml.safe_load(parser.parse_args().input.read_text())
    try:
        generate(found["vlnv"], found.get("parameters", {}), pathlib.Path.cwd())
    except ValueError as error:
        print(f"{pathlib.Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
