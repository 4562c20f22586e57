"""Links entries of the shared cache, which take long to build, into a test's own cache."""

import pathlib

from hdl.store import cache_folder
from sim.verilated.build import build_model
from sim.verilated.toolchain import compile_for, march

__all__ = ["COUNTER", "OTHER_MACHINE", "link_runtime"]

OTHER_MACHINE = "x86-64"

COUNTER = """\
module counter(input clk, input rst, input [7:0] step, output reg [7:0] count);
  always @(posedge clk) count <= rst ? 8'd0 : count + step;
endmodule
"""


def link_runtime(cache: pathlib.Path) -> None:
    """Put links to object files and precompiled headers into a new cache.

    The object files are those with which every model is linked. Files that are compiled for
    `OTHER_MACHINE` are included.
    """
    for machine in (march(), OTHER_MACHINE):
        with compile_for(machine):
            build_model("counter", {"counter": COUNTER},
                        optimise=None if machine == OTHER_MACHINE else False)
    objects = cache / "objects"
    objects.mkdir(parents=True)
    for kind in ("verilated*", "pool*", "headers*"):
        for made in (cache_folder() / "objects").glob(kind):
            if made.suffix in ("", ".o") and ".partial-" not in made.name:
                (objects / made.name).symlink_to(made)
