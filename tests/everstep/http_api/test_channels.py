"""Which channels a browser may join."""

import hashlib
import hmac
from typing import Any
from uuid import uuid4

import pytest

from everstep.http_api.channels import derived_secret
from tests.everstep.http_api.house import Let, Person, refused

PATH = "/broadcasting/auth"


def signature(socket_id: str, channel: str) -> str:
    """As Pusher's documentation says."""
    return "everstep:" + hmac.new(b"hush", f"{socket_id}:{channel}".encode(), hashlib.sha256).hexdigest()


async def test_the_channel_of_an_own_session_is_signed(ann: Person) -> None:
    """7.8.1"""
    channel = f"private-agent.session.{await ann.session()}"
    sent = {"socket_id": "1234.5678", "channel_name": channel}

    as_json = await ann.http.post(PATH, json=sent)
    as_form = await ann.http.post(PATH, data=sent)

    assert as_json.json() == as_form.json() == {"auth": signature("1234.5678", channel)}


async def test_the_channel_of_anybody_else_is_not(let: Let) -> None:
    ann, ben, far = await let("ann"), await let("ben"), await let("ann", tenant=f"far-{uuid4().hex}")
    service = await let("robot", "sessions:all")
    sent = {"socket_id": "1.2", "channel_name": f"private-agent.session.{await ann.session()}"}

    for stranger in (ben, far):
        refused(await stranger.http.post(PATH, data=sent), 403, "no session that you may read")
    unknown = {**sent, "channel_name": f"private-agent.session.{uuid4()}"}
    refused(await ann.http.post(PATH, data=unknown), 403)
    assert (await service.http.post(PATH, data=sent)).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"socket_id": "x"},
        {"socket_id": "1.2:private-agent.session.1"},
        {"socket_id": "1.2\n"},
        {"channel_name": "private-agent.session.1"},
        {"channel_name": "private-agent.session.{id}\n"},
        {"channel_name": "presence-agent.session.{id}"},
        {"channel_name": "private-agent.session.{ID}"},
        {"channel_name": ""},
        {"other": "x"},
    ],
)
async def test_what_is_no_channel_or_socket_is_refused(ann: Person, changed: dict[str, str]) -> None:
    session = await ann.session()
    named = {name: value.format(id=session, ID=session.upper()) for name, value in changed.items()}
    sent = {"socket_id": "1.2", "channel_name": f"private-agent.session.{session}"} | named

    refused(await ann.http.post(PATH, data=sent), 422)
    refused(await ann.http.post(PATH, json=sent), 422)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"[" * 50_000, "application/json"),
        (b"\xff", "application/x-www-form-urlencoded"),
        (b"&".join(b"a=%d" % n for n in range(50)), "application/x-www-form-urlencoded"),
        (b"socket_id=1.2", "application/x-www-form-urlencoded"),
    ],
)
async def test_a_body_that_is_none_is_refused(ann: Person, content: bytes, kind: Any) -> None:
    refused(await ann.http.post(PATH, content=content, headers={"Content-Type": kind}), 422)


def test_the_gateways_secret_follows_from_the_other() -> None:
    assert derived_secret("a") == derived_secret("a") != derived_secret("b")
    assert len(derived_secret("a")) == 64
