"""The messages between writers and gateways, written and read."""

import hashlib
import hmac
import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream import link
from everstep.agent_domain.stream.bus import Frame, TextChunk, encode_frame
from everstep.agent_domain.stream.envelopes import Attempt, Envelope
from everstep.agent_domain.stream.link import (
    EpochMessage,
    InterestMessage,
    PushMessage,
    interest_messages,
    pack_lines,
    parse_gateway_message,
    parse_writer_message,
)
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import frozen_map, json_text

AT = datetime(2026, 1, 16, 10, 5, 0, 123456, tzinfo=UTC)
REF = ExecutionRef(UUID(int=2), session_id=UUID(int=1))
STREAM = REF.stream_id
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


def an_entry(seq: int, text: str) -> StoredEnvelope:
    payload = frozen_map({"text": text})
    return StoredEnvelope(STREAM, seq, UUID(int=seq), "agent.status", REF.execution_id, payload, AT)


def a_chunk(index: int, text: str) -> TextChunk:
    return TextChunk(REF, Attempt(1), index, 0, text, 7, AT)


FRAMES = st.builds(an_entry, st.integers(1, 2**63), TEXTS) | st.builds(a_chunk, st.integers(0, 2**31), TEXTS)


def read_back(message: bytes) -> list[tuple[UUID, Envelope]]:
    pushed = parse_writer_message(message)
    assert isinstance(pushed, PushMessage)
    return [(stream_id, Envelope.from_dict(json.loads(body))) for stream_id, body in pushed.lines]


@given(st.lists(FRAMES))
def test_a_pushed_message_reads_back_unchanged(frames: list[Frame]) -> None:
    """7.1.1: any payload, in its order."""
    pushed = [frame.envelope if isinstance(frame, TextChunk) else Envelope.placed(frame) for frame in frames]
    together = pack_lines(link.line_from(STREAM, encode_frame(frame)) for frame in frames)

    assert [each for message in together for each in read_back(message)] == [(STREAM, one) for one in pushed]
    assert len(together) <= 1 or sum(map(len, together)) >= link.MAX_LINK_MESSAGE_BYTES


@given(st.lists(st.integers(1, 150_000)))
def test_a_message_is_of_bounded_size_or_holds_one_line(sizes: list[int]) -> None:
    lines = [b"x" * size for size in sizes]
    together = pack_lines(lines)

    assert b"\n".join(together) == b"\n".join(lines)
    assert all(len(message) < link.MAX_LINK_MESSAGE_BYTES or b"\n" not in message for message in together)


def test_a_line_too_long_for_a_message_is_sent_alone() -> None:
    long = b"x" * 2 * link.MAX_LINK_MESSAGE_BYTES
    assert pack_lines([b"a", b"b", long, b"c"]) == [b"a\nb", long, b"c"]


def test_an_execution_without_a_session_is_its_own_stream() -> None:
    """7.1.1: its session_id is null."""
    alone = StoredEnvelope(
        REF.execution_id, 1, UUID(int=9), "agent.status", REF.execution_id, frozen_map({}), AT
    )
    assert Envelope.placed(alone).session_id is None
    assert Envelope.placed(an_entry(1, "")).session_id == REF.session_id


def test_the_bytes_of_an_envelope_are_those_of_the_previous_release() -> None:
    """7.1.1: also where the payload was encoded when it was stored."""
    stored = an_entry(7, 'ö "quoted"\n')
    expected = json_text(Envelope.placed(stored).to_dict()).encode()
    encoded = replace(stored, payload_json=json_text(stored.payload))

    assert [encode_frame(each) for each in (stored, encoded)] == [expected, expected]
    assert encode_frame(a_chunk(1, "ö")) == json_text(a_chunk(1, "ö").envelope.to_dict()).encode()


def test_a_writer_first_names_its_history() -> None:
    assert link.epoch_message("of-now") == '{"epoch":"of-now"}'
    assert parse_writer_message(link.epoch_message("of-now")) == EpochMessage("of-now")


@given(st.sets(st.uuids()), st.sets(st.uuids()))
def test_a_gateway_sends_the_wanted_streams_and_those_no_longer_wanted(
    want: set[UUID], unwant: set[UUID]
) -> None:
    said = list(map(parse_gateway_message, interest_messages(want, unwant)))

    assert frozenset[UUID]().union(*(each.want for each in said)) == want
    assert frozenset[UUID]().union(*(each.unwant for each in said)) == unwant


def test_many_wanted_streams_take_several_messages() -> None:
    want = {UUID(int=number) for number in range(2 * link.MAX_STREAMS_PER_MESSAGE)}
    said = interest_messages(want)

    assert len(said) == 2
    assert all(len(each) < link.MAX_LINK_MESSAGE_BYTES for each in said)
    assert frozenset[UUID]().union(*(parse_gateway_message(each).want for each in said)) == want


def test_either_part_may_be_missing() -> None:
    assert parse_gateway_message(f'{{"want":["{STREAM}"],"later":1}}') == InterestMessage(
        want=frozenset({STREAM})
    )
    assert parse_gateway_message(f'{{"unwant":["{STREAM}"]}}'.encode()) == InterestMessage(
        unwant=frozenset({STREAM})
    )
    assert parse_gateway_message("{}") == InterestMessage()


def test_the_token_follows_from_the_secret() -> None:
    assert link.link_token("hush") == hmac.new(b"hush", b"everstep/link", hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        "{}",
        '{"epoch":7}',
        '{"epoch":""}',
        f'{{"epoch":"{"x" * 101}"}}',
        '{"a":' * 100_000,
        f"{STREAM}",
        f"{STREAM}\n{{}}",
        f"{STREAM} {{}}\n",
        f"{str(STREAM)[:-1]}x {{}}",
        "\ud800",
        b"{\xff",
    ],
)
def test_an_invalid_message_of_a_writer_is_refused(message: str | bytes) -> None:
    with pytest.raises(InvalidInput, match="the writer's message cannot be read"):
        parse_writer_message(message)


@pytest.mark.parametrize(
    "message", ["", "7", "[]", '{"want":"x"}', '{"want":["x"]}', '{"unwant":[7]}', "[" * 100_000, b"\xff"]
)
def test_an_invalid_message_of_a_gateway_is_refused(message: str | bytes) -> None:
    with pytest.raises(InvalidInput, match="the gateway's message cannot be read"):
        parse_gateway_message(message)


@given(st.text() | st.binary())
def test_no_input_raises_anything_else(message: str | bytes) -> None:
    for read in (parse_writer_message, parse_gateway_message):
        with suppress(InvalidInput):
            read(message)
