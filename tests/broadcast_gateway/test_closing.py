"""Frames and close codes."""

import pytest

from everstep.broadcast_gateway.wires.closing import (
    BAD_FRAME,
    CLOSINGS,
    MAX_FRAME,
    TOO_LARGE,
    BadFrame,
    Closing,
    parse_frame,
    text_frame,
)


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65535, b"\x81\x7e\xff\xff"),
        (65536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_a_text_frame_starts_with_its_length(size: int, header: bytes) -> None:
    body = b"x" * size
    assert text_frame(body) == header + body


@pytest.mark.parametrize("closing", CLOSINGS)
def test_a_code_determines_whether_to_reconnect(closing: Closing) -> None:
    """7.8.2: the same in both protocols."""
    comes_back = closing.reconnect_in is not None
    assert (3000 <= closing.native < 3500) is comes_back
    assert 3000 <= closing.native < 4000
    # The reactions of pusher-js to a close code.
    assert (4100 <= closing.pusher < 4300) is comes_back
    assert closing.pusher != 4000


def test_a_code_has_a_reason() -> None:
    assert len({closing.native for closing in CLOSINGS}) == len(CLOSINGS)
    # RFC 6455: a close frame's payload has up to 125 bytes, two of which are the code.
    assert all(len(closing.reason.encode()) <= 123 for closing in CLOSINGS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff\xfe",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\u0000"}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"[" * MAX_FRAME,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
    ],
)
def test_a_frame_without_a_json_object_is_a_bad_frame(data: bytes) -> None:
    with pytest.raises(BadFrame) as refused:
        parse_frame(data)
    assert refused.value.closing is BAD_FRAME


def test_a_frame_that_is_too_large_is_not_even_read() -> None:
    with pytest.raises(BadFrame) as refused:
        parse_frame(b"{" + b" " * MAX_FRAME)
    assert refused.value.closing is TOO_LARGE
