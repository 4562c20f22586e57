"""The serial protocol, and the golden model of the bridge between serial line and chip."""

import random
import struct
import zlib
from collections.abc import Iterable

import pytest

from golden.fpga.bridge import GoldenBridge
from hdl.fpga.protocol import (
    ESCAPE,
    FLAG,
    MAX_REQUEST,
    MAX_WORDS,
    RESPONSE_BYTES,
    VERSION,
    Deframer,
    Operation,
    Request,
    Response,
    Status,
    frame,
)


class Words:
    """A target of the bridge: words at the addresses below a limit, and a log of the writes."""

    def __init__(self) -> None:
        self.words = {4 * number: number * 0x10101 for number in range(300)}
        self.writes: list[tuple[int, int]] = []
        self.resets = 0

    def read(self, address: int) -> int | None:
        return self.words.get(address)

    def write(self, address: int, word: int) -> bool:
        if address not in self.words:
            return False
        self.words[address] = word
        self.writes.append((address, word))
        return True

    def reset(self) -> None:
        self.resets += 1


def sent(bridge: GoldenBridge, line: Iterable[int | None]) -> list[Response]:
    """The bridge's responses to the bytes that a line carries; None: a byte without a stop bit."""
    deframer = Deframer(RESPONSE_BYTES + 4, MAX_REQUEST)
    found = [deframer.receive(byte) for taken in line for byte in bridge.receive(taken)]
    assert deframer.dropped == 0
    return [Response.parse(payload) for payload in found if payload is not None]


def ask(bridge: GoldenBridge, request: Request) -> Response:
    [response] = sent(bridge, frame(request.payload()))
    assert response.sequence == request.sequence
    return response


def test_words_are_written_and_read() -> None:
    target = Words()
    bridge = GoldenBridge(target)
    words = (FLAG, ESCAPE << 24 | FLAG, 0xFFFFFFFF)
    assert ask(bridge, Request(1, Operation.WRITE, 16, words)) == Response(1, Status.OKAY, 3)
    assert target.writes == list(zip((16, 20, 24), words, strict=True))
    assert ask(bridge, Request(2, Operation.READ, 16, count=3)).words == words
    assert ask(bridge, Request(3, Operation.READ_FIXED, 20, count=2)).words == words[1:2] * 2
    ask(bridge, Request(4, Operation.WRITE_FIXED, 8, (5, 6)))
    assert target.writes[-2:] == [(8, 5), (8, 6)]
    assert ask(bridge, Request(5, Operation.READ, 0, count=MAX_WORDS)).count == MAX_WORDS
    assert ask(bridge, Request(6, Operation.RESET)) == Response(6, Status.OKAY, 0)
    assert target.resets == 1


def test_refused_access_ends_a_request() -> None:
    target = Words()
    bridge = GoldenBridge(target)
    last = 4 * 299
    read = ask(bridge, Request(0, Operation.READ, last - 4, count=3))
    assert read == Response(0, Status.REFUSED, 2, (298 * 0x10101, 299 * 0x10101))
    written = ask(bridge, Request(1, Operation.WRITE, last, (1, 2)))
    assert written == Response(1, Status.REFUSED, 1)
    assert target.writes == [(last, 1)]


def test_repeated_request_is_executed_once() -> None:
    target = Words()
    bridge = GoldenBridge(target)
    line = frame(Request(9, Operation.WRITE_FIXED, 0, (1, 2)).payload())
    assert sent(bridge, line) * 2 == sent(bridge, line * 2)
    assert len(target.writes) == 2
    assert ask(bridge, Request(10, Operation.WRITE_FIXED, 0, (1, 2))).count == 2
    assert len(target.writes) == 4


@pytest.mark.parametrize("payload", [
    struct.pack("<BBHI", 0, 6, 0, 0), struct.pack("<BBHI", 0, Operation.READ, 0, 0),
    struct.pack("<BBHI", 0, Operation.READ, MAX_WORDS + 1, 0),
    struct.pack("<BBHI", 0, Operation.READ, 1, 2), struct.pack("<BBHI", 0, Operation.WRITE, 1, 0),
    struct.pack("<BBHII", 0, Operation.READ, 1, 0, 0), struct.pack("<BBHI", 0, 0, 1, 0)])
def test_malformed_request_is_answered_without_effect(payload: bytes) -> None:
    target = Words()
    [response] = sent(GoldenBridge(target), frame(payload))
    assert response == Response(0, Status.MALFORMED, 0)
    assert not target.writes


def damaged(rng: random.Random, line: bytes) -> list[int | None]:
    """A request after random damage on the line."""
    found: list[int | None] = list(line)
    place = rng.randrange(2, len(found) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        del found[place:]
    elif kind == 1:
        found[place] = None
    elif kind == 2:
        del found[rng.randrange(1, len(found) - 1)]
    else:
        found[place] = line[place] ^ 1 << rng.randrange(8)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_damaged_requests_are_dropped_and_the_next_is_found(seed: int) -> None:
    rng = random.Random(seed)
    target = Words()
    bridge = GoldenBridge(target)
    for number in range(60):
        words = tuple(rng.getrandbits(32) for _ in range(rng.randrange(1, 9)))
        request = frame(Request(number, Operation.WRITE, 0, words).payload())
        before = bridge.dropped
        assert sent(bridge, damaged(rng, request)) == []
        assert not target.writes
        [response] = sent(bridge, bytes([FLAG]) + frame(
            Request(number, Operation.IDENTIFY).payload()))
        assert response.words == (bridge.dropped << 16 | VERSION,)
        assert before < bridge.dropped <= before + 2  # an invented flag makes two of one


def test_noise_is_never_executed() -> None:
    rng = random.Random(5)
    target = Words()
    bridge = GoldenBridge(target)
    noise: list[int | None] = [rng.choice((None, FLAG, rng.getrandbits(8), rng.getrandbits(8)))
                               for _ in range(5000)]
    assert sent(bridge, [*noise, *bytes(MAX_REQUEST + 1), FLAG]) == []
    assert bridge.dropped > 100
    assert ask(bridge, Request(0, Operation.WRITE, 0, (1,))).status == Status.OKAY


def test_checksum_is_that_of_zlib() -> None:
    assert frame(b"\x01")[1:-1] == b"\x01" + struct.pack("<I", zlib.crc32(b"\x01"))


@pytest.mark.parametrize(("arguments", "message"), [
    ({"sequence": 256}, "sequence must be from 0 to 255, not 256"),
    ({"address": 2}, "address must be a multiple of 4, not 2"),
    ({"operation": Operation.READ}, "count must be from 1 to 256, not 0"),
    ({"operation": Operation.WRITE}, "number of words must be from 1 to 256 for WRITE, not 0"),
    ({"words": (1,)}, "number of words must be 0 for IDENTIFY, not 1")])
def test_wrong_requests_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**{"sequence": 0, "operation": Operation.IDENTIFY, **arguments})


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", struct.pack("<BBHI", 0, 0, 2, 0),
                                     struct.pack("<BBH", 0, 9, 0)])
def test_wrong_responses_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"payload must|not a valid Status"):
        Response.parse(payload)
