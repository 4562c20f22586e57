"""Formal proofs of narrow links: credits, repetition, and packets on channels.

Each is an induction over time: for any inputs in any number of cycles. ``proofs/`` has the
properties and the environment of each proof. A bug in the design must make the proof fail.
"""

import pathlib
import tempfile
from collections.abc import Callable

import pytest
from amaranth.lib import wiring

from hdl import yosys
from hdl.link.format import LinkConfig
from hdl.link.receiver import LinkReceiver
from hdl.link.router import PacketMux
from hdl.link.window import Credits, Window
from hdl.tiles import VerilogLibrary

CONFIG = LinkConfig(payload_bytes=1, depth=4)
_HERE = pathlib.Path(__file__).parent / "proofs"
_MODULES: dict[str, dict[str, Callable[[], wiring.Component]]] = {
    "credits": {"credits": lambda: Credits(CONFIG)},
    "sequence": {"window": lambda: Window(CONFIG), "receiver": lambda: LinkReceiver(CONFIG)},
    "channels": {"mux": lambda: PacketMux(CONFIG, 2, 2)}}
_SHOWN = {"credits": "used_0 used_1 freed_0 freed_1", "window": "repeated",
          "receiver": "body waiting", "mux": "holder_0 holder_1"}
"""By file of proofs, the internal signals of the module to which the properties refer."""


def prove(name: str, bug: tuple[str, str, str] | None = None) -> None:
    """Prove that the output ``good`` of a file in ``proofs/`` is always 1.

    ``bug`` is a module, a part of its Verilog, and what replaces that part.

    Raises
    ------
    RuntimeError
        If there is no proof.
    """
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        (folder / "proof.sv").write_text((_HERE / f"{name}.sv").read_text())
        script = ["read_verilog -sv proof.sv"]
        for module, make in _MODULES[name].items():
            for part, text in VerilogLibrary().write(module, make).items():
                if part.startswith("frame_check"):
                    continue
                old, new = bug[1:] if bug and part == bug[0] else ("", "")
                assert old in text
                (folder / f"{part}.v").write_text(text.replace(old, new) if old else text)
                script.append(f"read_verilog {part}.v")
            script += [f"cd {module}", "proc",
                       *(f"expose w:{signal}" for signal in _SHOWN[module].split()), "cd .."]
        script += ["hierarchy -check -top proof", "proc", "flatten", "opt -fast",
                   "sat -verify -tempinduct -prove good 1 proof"]
        yosys.run("\n".join(script), cwd=folder)


@pytest.mark.parametrize("name", _MODULES)
def test_proof(name: str) -> None:
    prove(name)


@pytest.mark.parametrize(("name", "bug"), [
    ("credits", ("credits", "send & channel", "1'b0")),  # a flit costs no credit
    ("credits", ("credits", "heard ?", "1'b1 ?")),  # credits come back without a frame
    ("credits", ("credits", "~ used_0[2]", "1'b1")),  # the buffer is never full
    ("sequence", ("window", "heard ?", "1'b1 ?")),  # an answer counts that did not arrive
    ("sequence", ("receiver", "! ahead", "1'b1")),  # each flit is taken for the next one
    ("sequence", ("receiver", "check__check == ", "1'b1 | ")),  # a damaged frame is delivered
    ("sequence", ("receiver", "assign received = ", "assign received = 1'b0 & ")),  # no delivery
    # no loss is reported
    ("sequence", ("receiver", "assign \\report.lost  = ", "assign \\report.lost  = 1'b0 & ")),
    ("sequence", ("window", "= back | ", "= 1'b0 & back | ")),  # the window does not go back
    ("channels", ("mux", "else holder_0 <= ", "else holder_0 <= 2'h0 & ")),  # no channel is held
    ("channels", ("mux", "source__1__valid & \\$3 ", "1'b0 ")),  # a source does not get channel 0
    ("channels", ("mux", "assign channel = ", "assign channel = ~ "))])
def test_proof_fails_with_a_bug(name: str, bug: tuple[str, str, str]) -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove(name, bug)
