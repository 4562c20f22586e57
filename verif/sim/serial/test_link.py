"""Requests over a bad line are repeated, but executed once; the error names a useless line."""

import random

import pytest

from hdl.fpga.protocol import MEMORY_BASE, VERSION, Operation, Status
from sim.errors import BoardError
from sim.serial.link import SerialLink
from verif.sim.serial.common import FakePort


def link_to(port: FakePort) -> SerialLink:
    return SerialLink(port, "fake", 1_000_000, clock=port.clock)


def test_requests_have_responses_and_are_counted() -> None:
    port = FakePort()
    with link_to(port) as link:
        assert link.ask(Operation.IDENTIFY).words == (VERSION,)
        # 14 bytes without escapes; the sequence number and the check may need some.
        assert 14 <= link.sent_bytes == port.written_bytes <= 19
        assert 14 <= link.received_bytes == port.read_bytes <= 19
        assert link.ask(Operation.WRITE, MEMORY_BASE, (1, 2)).count == 2
        assert link.ask(Operation.READ, MEMORY_BASE, count=2).words == (1, 2)
        assert link.ask(Operation.READ, 0x2000, count=1).status is Status.REFUSED
        assert (link.requests, link.repeats) == (4, 0)
    assert port.closed
    with pytest.raises(BoardError, match="link to fake is closed"):
        link.ask(Operation.IDENTIFY)


def test_damaged_requests_and_responses_are_repeated_and_executed_once() -> None:
    port = FakePort(noise=0.01)
    rng = random.Random(7)
    with link_to(port) as link:
        for number in range(300):
            words = tuple(rng.getrandbits(32) for _ in range(rng.randrange(1, 5)))
            at = 0x200 + 4 * number
            assert link.ask(Operation.WRITE_FIXED, at, words).count == len(words)
            assert [word for place, word in port.target.writes if place == at] == list(words)
            assert link.ask(Operation.READ_FIXED, at, count=3).words == words[-1:] * 3
        assert link.requests == 600
        assert 50 < link.repeats < 400
        assert port.breaks == port.flags_after_break == link.repeats


def test_late_response_does_not_answer_the_next_request() -> None:
    port = FakePort()
    with link_to(port) as link:
        link.ask(Operation.WRITE, 0x200, (5,))
        port.hold = 1
        assert link.ask(Operation.READ, 0x200, count=1).words == (5,)  # came twice
        assert link.ask(Operation.READ, 0x204, count=1).words == (0,)
        assert link.repeats == 1


def test_slow_board_is_waited_for() -> None:
    port = FakePort(seconds=0.03)
    with link_to(port) as link:
        link.ask(Operation.IDENTIFY)
        assert len(link.ask(Operation.READ, MEMORY_BASE, count=256).words) == 256
        assert link.repeats == 0
        assert port.clock.now - 100 > 30


def test_silent_board_is_named_and_not_asked_again() -> None:
    port = FakePort()
    with link_to(port) as link:
        port.connected = False
        with pytest.raises(BoardError, match=r"does not answer \(8 requests at 1000000 baud\)"):
            link.ask(Operation.IDENTIFY)
        sent = link.sent_bytes
        with pytest.raises(BoardError, match="does not answer"):
            link.ask(Operation.IDENTIFY)
        assert link.sent_bytes == sent
        assert link.find_baud() is None


def test_line_with_too_much_noise_is_named() -> None:
    with (link_to(FakePort(noise=0.02)) as link,
          pytest.raises(BoardError, match="no valid frame: the line is noisy, or its rate is not")):
        link.ask(Operation.READ, MEMORY_BASE, count=256)


def test_rate_of_the_board_is_found() -> None:
    port = FakePort()
    with link_to(port) as link:
        port.board_baud = 460_800
        with pytest.raises(BoardError, match="1000000 baud"):
            link.ask(Operation.IDENTIFY)
        assert link.find_baud() == 460_800


def test_port_that_is_gone_ends_a_request_at_once() -> None:
    port = FakePort()
    with link_to(port) as link:
        port.gone = True
        with pytest.raises(BoardError, match="serial port fake is gone"):
            link.ask(Operation.IDENTIFY)
        assert link.repeats == 0
