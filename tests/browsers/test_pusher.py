"""Unmodified pusher-js and laravel-echo, with the real gateway and the real signatures of the HTTP API."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs
from uuid import UUID

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.agent_domain.ids import Scope as Seen
from everstep.agent_domain.stream.channels import Channel
from everstep.broadcast_gateway.limits import GatewayLimits
from everstep.http_api.app import create_app
from everstep.http_api.auth import allow_all
from everstep.http_api.channel_authorization import Signer
from everstep.http_api.dependencies import Api
from tests.acceptance.harness import until
from tests.broadcast_gateway.gateways import KEY, SECRET, RunningGateway, Table, open_gateway
from tests.broadcast_gateway.writers import OTHER, SESSION
from tests.browsers.chromium import serve_app
from tests.browsers.relay import Relay, open_relay
from tests.browsers.viewer import HERE, LOCK, Viewer, as_module, in_node
from tests.node import installed_modules

CHANNEL = f"private-agent.session.{SESSION}"
STREAMING = HERE.parents[1] / "docs" / "streaming.md"
QUICK = GatewayLimits(drain_seconds=0.05, closing_seconds=1.0)


@dataclass
class Office:
    """The authorisation endpoint: the route of the HTTP API, which knows all streams but one."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    is_away: bool = False

    async def stream(self, channel: Channel, scope: Seen | None) -> UUID | None:
        """Whether it may be watched."""
        del scope
        return None if channel.stream_id == OTHER else channel.stream_id

    @property
    def since(self) -> list[Any]:
        """The positions in the requests."""
        return [each.get("since") for each in self.asked]

    def noting(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests recorded."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            body = await Request(scope, receive).body()

            async def again() -> Any:
                return {"type": "http.request", "body": body, "more_body": False}

            self.asked.append(_request_fields(body))
            await app({**scope, "path": "/away"} if self.is_away else scope, again, send)

        return answer


def _request_fields(body: bytes) -> dict[str, Any]:
    if body.startswith(b"{"):
        return json.loads(body)
    form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    return form | {"since": json.loads(form["since"])} if "since" in form else form


@dataclass
class Place:
    """A client's environment: an authorisation endpoint, a relay, and a gateway behind it."""

    office: Office
    relay: Relay
    table: Table
    gateway: RunningGateway
    parts: AsyncExitStack

    async def restart(self) -> None:
        """Replace this gateway by another one, which knows only the table."""
        self.relay.lead_to(None)
        await self.gateway.stop()
        self.gateway = await self.parts.enter_async_context(open_gateway(self.table, bounds=QUICK))
        self.relay.lead_to(self.gateway.port)


@asynccontextmanager
async def a_place(signed_with: str = SECRET, bounds: GatewayLimits = QUICK) -> AsyncGenerator[Place]:
    """A place with one stored envelope, whose authorisation endpoint uses this secret."""
    office, table = Office(), Table()
    table.store()
    async with AsyncExitStack() as parts:
        gateway = await parts.enter_async_context(open_gateway(table, bounds=bounds))
        relay = await parts.enter_async_context(open_relay(gateway.port))
        absent = cast("Any", None)
        api = Api(absent, absent, absent, absent, absent, office, allow_all(), Signer(KEY, signed_with))
        served_at = serve_app(cast("Any", office.noting(create_app(api))))
        office.url = await parts.enter_async_context(served_at)
        yield Place(office, relay, table, gateway, parts)


@pytest_asyncio.fixture
async def place() -> AsyncGenerator[Place]:
    """A place with the right secret."""
    async with a_place() as place:
        yield place


@pytest_asyncio.fixture
async def ann(tmp_path: Path) -> AsyncGenerator[Viewer]:
    """A viewer with pusher-js."""
    pusher = installed_modules(LOCK) / "pusher-js" / "dist" / "node" / "pusher.js"
    async with in_node(HERE / "pusher.mjs", as_module(tmp_path), pusher) as ann:
        yield ann


def connects(ann: Viewer, place: Place, key: str = KEY, **options: Any) -> None:
    endpoint = f"{place.office.url}/broadcasting/auth"
    ann.command("connect", key=key, port=place.relay.port, endpoint=endpoint, options=options)


async def joins(ann: Viewer, place: Place, **options: Any) -> None:
    """Subscribe, and wait for the first new envelope."""
    connects(ann, place, **options)
    ann.command("subscribe", channel=CHANNEL)
    await ann.until("joined", 1, CHANNEL)
    place.table.store()
    await ann.until("applied", 1, CHANNEL)


def applied_seqs(ann: Viewer) -> list[int]:
    """The envelopes that the reader's rule applied."""
    assert not ann.events_of("resync", CHANNEL)
    return [envelope["seq"] for envelope in ann.events_of("applied", CHANNEL)]


# Joining.


async def test_an_authorised_viewer_receives_events(place: Place, ann: Viewer) -> None:
    """7.8.1: the history up to then comes from the API."""
    await joins(ann, place)
    stored = place.table.store(2)
    await ann.until("applied", 3, CHANNEL)
    assert ann.events_of("joined", CHANNEL) == [{"epoch": "first", "seq": 1, "recovered": False}]
    assert applied_seqs(ann) == [2, 3, 4]
    assert ann.events_of("applied", CHANNEL)[-1] == json.loads(stored[-1].body)
    assert ann.events_of("state", None) == ["connected"]
    assert not ann.events_of("error", None)


async def is_still_connected(ann: Viewer) -> None:
    ann.command("says", event="pusher:ping")
    await ann.until("pong", 1, None)
    assert ann.events_of("state", None) == ["connected"]


async def test_an_unauthorised_viewer_keeps_the_connection(place: Place, ann: Viewer) -> None:
    connects(ann, place)
    other = f"private-agent.session.{OTHER}"
    ann.command("subscribe", channel=other)
    (refusal,) = await ann.until("refused", 1, other)
    assert (refusal["type"], refusal["status"]) == ("AuthError", 403)
    await is_still_connected(ann)
    ann.command("subscribe", channel=CHANNEL)
    await ann.until("joined", 1, CHANNEL)


async def test_a_wrong_signature_is_refused_and_the_connection_stays(ann: Viewer) -> None:
    async with a_place(signed_with="another secret") as place:
        connects(ann, place)
        ann.command("subscribe", channel=CHANNEL)
        (refusal,) = await ann.until("refused", 1, CHANNEL)
        assert refusal == {"type": "AuthError", "error": "the signature is not valid", "status": 401}
        await is_still_connected(ann)


async def test_client_events_are_not_relayed(place: Place, ann: Viewer) -> None:
    await joins(ann, place)
    ann.command("says", event="client-typing", channel=CHANNEL)
    assert await ann.until("error", 1, None) == [4301]
    await is_still_connected(ann)


async def test_an_unknown_key_is_not_retried(place: Place, ann: Viewer) -> None:
    connects(ann, place, key="another")
    await ann.until_true(lambda: "disconnected" in ann.events_of("state", None))
    assert ann.events_of("error", None) == [4001]
    # Only a timer could make it reconnect.
    await ann.is_idle()
    assert "connected" not in ann.events_of("state", None)
    assert not place.office.asked


# Reconnecting.


async def cut(place: Place, ann: Viewer) -> None:
    """Cut without a close frame."""
    del ann
    place.relay.cut()


async def kill_gateway(place: Place, ann: Viewer) -> None:
    """Kill the gateway; another one takes its place."""
    del ann
    place.relay.lead_to(None)
    place.relay.cut()
    await place.restart()


async def drain_gateway(place: Place, ann: Viewer) -> None:
    """Stop the gateway gracefully: 4200."""
    await place.restart()
    assert ann.events_of("error", None)[0] == 4200


async def without_a_table(place: Place, ann: Viewer) -> None:
    """The next gateway cannot read the table at first: 4100."""
    place.table.is_away = True
    await place.restart()
    await ann.until_true(lambda: 4100 in ann.events_of("error", None))
    place.table.is_away = False


async def stuck(place: Place, ann: Viewer) -> None:
    """No bytes arrive any more, and no side closes."""
    before = len(ann.events_of("state", None))
    place.relay.stop()
    await ann.until_true(lambda: len(ann.events_of("state", None)) > before)
    place.relay.resume()


@pytest.mark.parametrize("lost", [cut, kill_gateway, drain_gateway, without_a_table, stuck])
async def test_a_cut_viewer_reconnects_and_continues_from_its_position(
    place: Place, ann: Viewer, lost: Callable[[Place, Viewer], Awaitable[None]]
) -> None:
    """7.8.3, 7.8.4: each stored envelope once, in order."""
    await joins(ann, place, activityTimeout=500, pongTimeout=500)
    place.table.store(2)
    await ann.until("applied", 3, CHANNEL)
    await lost(place, ann)
    place.table.store(2)
    await ann.until("joined", 2, CHANNEL)
    place.table.store(2)
    await ann.until("applied", 7, CHANNEL)
    assert applied_seqs(ann) == [2, 3, 4, 5, 6, 7, 8]
    assert all(answer["recovered"] for answer in ann.events_of("joined", CHANNEL)[1:])
    assert place.office.asked[0].keys() == {"socket_id", "channel_name"}
    # The first connection can be lost before it has joined, on a busy machine; the next then has no position.
    followed = list(dropwhile(lambda since: since is None, place.office.since))
    assert followed
    assert followed == [{"epoch": "first", "seq": 4}] * len(followed)
    sockets = [each["socket_id"] for each in place.office.asked]
    assert len(sockets) == len({*sockets})


async def test_nothing_of_a_changed_history_is_recovered(place: Place, ann: Viewer) -> None:
    """7.8.4"""
    await joins(ann, place)
    place.table.epoch = "second"
    await ann.until("joined", 2, CHANNEL)
    assert ann.events_of("error", None)[0] == 4200
    assert ann.events_of("joined", CHANNEL)[1] == {"epoch": "second", "seq": 2, "recovered": False}
    place.table.store()
    await ann.until("applied", 2, CHANNEL)
    assert applied_seqs(ann) == [2, 3]


async def test_a_client_that_receives_nothing_pings(ann: Viewer) -> None:
    """The gateway sets the interval."""
    async with a_place(bounds=replace(QUICK, ping_after=1.0)) as place:
        await joins(ann, place)
        await ann.until("pong", 2, None)
        assert ann.events_of("state", None) == ["connected"]


# Laravel Echo, as docs/streaming.md shows it.

(SNIPPET,) = (
    block
    for block in re.findall(r"```js\n(.*?)```", STREAMING.read_text(encoding="utf-8"), re.DOTALL)
    if "laravel-echo" in block
)


@asynccontextmanager
async def with_echo(place: Place, folder: Path) -> AsyncGenerator[Viewer]:
    """A viewer whose page runs the code in the docs, with this gateway."""
    page = SNIPPET
    for there, here in (
        ('"agents.example"', '"127.0.0.1"'),
        ("6001", str(place.relay.port)),
        ('"everstep"', f'"{KEY}"'),
    ):
        assert page.count(there) == 1
        page = page.replace(there, here)
    (folder / "page.mjs").write_text(page, encoding="utf-8")
    (folder / "node_modules").symlink_to(installed_modules(LOCK))
    async with in_node(HERE / "echo.mjs", folder / "page.mjs", place.office.url, str(SESSION)) as ann:
        yield ann


async def expect_seqs(ann: Viewer, *seqs: int) -> None:
    """Wait until the page shows exactly these."""
    await ann.until("show", len(seqs), None)
    assert ann.events_of("show", None) == [*seqs]


@pytest.mark.parametrize("lost", [cut, kill_gateway])
async def test_a_page_with_laravel_echo_continues_from_its_position(
    place: Place, tmp_path: Path, lost: Callable[[Place, Viewer], Awaitable[None]]
) -> None:
    """7.8.3, 7.8.4"""
    async with with_echo(place, tmp_path) as ann:
        assert await ann.until("load", 1, None) == [str(SESSION)]
        place.table.store(2)
        await expect_seqs(ann, 2, 3)
        await lost(place, ann)
        place.table.store(2)
        await expect_seqs(ann, 2, 3, 4, 5)
        assert place.office.since == [None, {"epoch": "first", "seq": 3}]
        place.table.epoch = "second"
        await ann.until("load", 2, None)
        place.table.store()
        await expect_seqs(ann, 2, 3, 4, 5, 6)


async def test_a_page_with_laravel_echo_retries_a_failed_authorisation(place: Place, tmp_path: Path) -> None:
    """The API may be away while the gateway is not."""
    place.office.is_away = True
    async with with_echo(place, tmp_path) as ann:
        await ann.until("waits", 2, None)
        place.office.is_away = False
        await ann.until("load", 1, None)
        place.table.store()
        await expect_seqs(ann, 2)


async def test_a_page_with_laravel_echo_reconnects_soon_after_nothing_listened(
    place: Place, tmp_path: Path
) -> None:
    """pusher-js alone waits 15 seconds, then 30, then a minute."""
    async with with_echo(place, tmp_path) as ann:
        await ann.until("load", 1, None)
        place.relay.refused = 0
        place.relay.cut()
        await until("he was turned away", lambda: place.relay.refused)
        place.relay.refused = None
        place.table.store()
        async with asyncio.timeout(12):
            await expect_seqs(ann, 2)
