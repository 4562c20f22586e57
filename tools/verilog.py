"""``make verilog``: writes the design as Verilog, describes it in JSON, and lints it."""

import argparse
import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from hdl.config import PRESETS, Config
from hdl.lint import LINT_WAIVERS
from hdl.store import digest, keep_text, kept_text
from hdl.target import Target
from hdl.verilog import Export, export
from sim.verilated.toolchain import Toolchain, build_folder, verilator_version

__all__ = ["lint", "main", "write"]


def write(design: Export, folder: pathlib.Path) -> list[pathlib.Path]:
    """Replace the contents of ``folder`` by the design's files, and return their paths.

    The files are a ``.v`` file for each module, ``design.json`` with parameters, modules and ports,
    and ``lint.vlt`` with waivers for Verilator, each with its reason.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    files = {f"{name}.v": text for name, text in design.sources.items()}
    files["design.json"] = design.description()
    files["lint.vlt"] = f"`verilator_config\n{LINT_WAIVERS}"
    for name, text in files.items():
        (folder / name).write_text(text)
    return [folder / name for name in sorted(files)]


def lint(design: Export) -> Iterator[tuple[str, str]]:
    """Lint each module together with the ports of the modules that it instantiates.

    Yields the name and the warnings of each module, "" if there are none. Modules are linted one
    at a time: for all 16,384 cells at once, Verilator would need many minutes and find nothing
    more. The cache keeps which modules are clean: they are not linted again, in any design.
    """
    tools = Toolchain.find()
    for module, text in design.sources.items():
        files = {
            "lint.vlt": f'`verilator_config\n{LINT_WAIVERS}lint_off -file "*children.v"\n',
            f"{module}.v": text,
            "children.v": "\n".join(map(design.stub, design.modules[module].instances)),
        }
        arguments = ["--lint-only", "-Wall", "--top-module", module, *files]
        key = digest([list(files.items()), arguments, verilator_version()])
        if kept_text("lint", f"{module}.txt", key) is not None:
            yield module, ""
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                pathlib.Path(folder, name).write_text(content)
            done = subprocess.run([*tools.verilator, *arguments], cwd=folder,
                                  env=tools.environment(), capture_output=True, text=True,
                                  check=False)
        if done.returncode:
            yield module, done.stderr or f"{module}.v: Verilator failed ({done.returncode})\n"
        else:
            with contextlib.suppress(OSError):  # the cache may be read-only
                keep_text("lint", f"{module}.txt", key, "clean")
            yield module, ""


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="make verilog", description=__doc__)
    parser.add_argument("config", choices=PRESETS, help="which preset to export")
    parser.add_argument("--target", choices=[str(target) for target in Target],
                        default=str(Target.GENERIC), help="technology to export for")
    arguments = parser.parse_args()
    config: str = arguments.config
    target = Target(arguments.target)
    design = export(Config.preset(config), target)
    name = config if target is Target.GENERIC else f"{config}-{target}"
    folder = build_folder() / "verilog" / name
    files = write(design, folder)
    complaints = [text for _, text in lint(design) if text]
    for name, times in design.totals().items():
        print(f"{times:7,} x {name}")
    print(f"{len(files)} files in {folder}")
    if complaints:
        print("".join(complaints), file=sys.stderr)
        return 1
    print("lint: clean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
