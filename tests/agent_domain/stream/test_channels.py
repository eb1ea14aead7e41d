"""The names of streams, and the right to join them."""

import hashlib
import hmac
from uuid import UUID

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import Channel, channel_data, channel_signature, parse_since
from everstep.agent_domain.stream.envelopes import channel_name
from everstep.agent_domain.stream.reader import Place, Position

ID = UUID("0190b4a6-4a53-7c2e-9a0e-0c7f6f1f7a10")


@pytest.mark.parametrize(
    ("name", "channel"),
    [
        (f"agent.session.{ID}", Channel(ID)),
        (f"agent.{ID}", Channel(ID)),
        (f"agent.execution.{ID}", Channel(ID, is_session=False)),
        (f"private-agent.session.{ID}", Channel(ID, is_private=True)),
        (f"private-agent.{ID}", Channel(ID, is_private=True)),
        (f"private-agent.execution.{ID}", Channel(ID, is_session=False, is_private=True)),
    ],
)
def test_a_stream_has_several_names(name: str, channel: Channel) -> None:
    """7.1.1, 7.1.2"""
    assert Channel.parse(name) == channel
    assert channel.session_id == (ID if channel.is_session else None)


def test_the_channel_of_an_envelope_is_one_of_them() -> None:
    """7.1.2"""
    assert Channel.parse(channel_name(ID, UUID(int=1))) == Channel(ID)
    assert Channel.parse(channel_name(None, ID)) == Channel(ID, is_session=False)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "agent.",
        "agent.session.1",
        f"agent.step.{ID}",
        f"presence-agent.session.{ID}",
        f"agent.session.{ID}\n",
        f"agent.session.{str(ID).upper()}",
        f"agent.session.{{{ID}}}",
        f"private-private-agent.{ID}",
    ],
)
def test_other_names_are_no_channels(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"agent\.session"):
        Channel.parse(name)


def test_a_signature_covers_connection_channel_and_data() -> None:
    def expected_signature(text: str) -> str:
        return hmac.new(b"hush", text.encode(), hashlib.sha256).hexdigest()

    assert channel_signature("hush", "1.2", "private-a") == expected_signature("1.2:private-a")
    assert channel_signature("hush", "1.2", "private-a", '{"ö":1}') == expected_signature(
        '1.2:private-a:{"ö":1}'
    )


def test_a_position_travels_in_the_data_of_a_channel() -> None:
    """7.8.4"""
    since = Position(7, "of-now", {ID: Place(2, 1, 40)})
    assert parse_since(channel_data(since)) == since


@pytest.mark.parametrize("data", [None, "{}", '{"since":null,"user_id":"ann"}'])
def test_a_viewer_without_a_position_has_none(data: str | None) -> None:
    assert parse_since(data) is None


@pytest.mark.parametrize("data", ["", "[]", "7", '{"since":7}', '{"since":{}}', '{"since":{"seq":"1"}}'])
def test_data_that_cannot_be_read_are_refused(data: str) -> None:
    with pytest.raises(InvalidInput, match="channel_data cannot be read"):
        parse_since(data)
