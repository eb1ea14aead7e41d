"""A client of the gateway: follows a stream and reconnects, without losing or repeating events.

    async with aclosing(stream(url, f"agent.session.{session_id}", token=token)) as events:
        async for event in events:
            match event:
                case Happened(envelope): ...
                case Wrote(text=text): ...
                case Reload(): ...

The client reads only when the caller asks for the next event, so its buffer is bounded. If the caller is busy
for too long, the gateway closes the connection, and the client resumes from its position.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from inspect import isawaitable
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import Channel
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import Position, Reader, ReadOutcome
from everstep.agent_domain.values import FrozenDict, reading, valid_text
from everstep.streams.backoff import Backoff, ClientTimings
from everstep.streams.client_events import Happened, Reload, StreamEvent, StreamRefused, Wrote
from everstep.streams.connection import Garbled, GatewayConnection, Lost, open_connection, socket_url

logger = logging.getLogger(__name__)

Token: TypeAlias = str | Callable[[], str | Awaitable[str]] | None
"""The token that opens the stream, or a callable that is asked for one at each connection."""

MAX_GARBLED = 8
"""So many unreadable frames in a row are not a transmission error."""


def stream(url: str, channel: str, *, token: Token = None, since: Position | None = None) -> "Stream":
    """Follow a channel over the gateway at `url` until the stream is closed.

    The stream reconnects by itself. It ends only with `StreamRefused`, with an exception of `token`, or when
    the task that awaits it is cancelled; a new stream can then resume from its `position`. Close it with
    `contextlib.aclosing`.

    Args:
        url: The gateway, such as `ws://127.0.0.1:6001`.
        channel: The channel to follow.
        token: A token, or a callable that returns one.
        since: The position after which events are sent; None for now, `Position()` for the whole history.
    """
    return Stream(url, channel, token, since)


class Stream:
    """The events of a channel, as an asynchronous iterator."""

    def __init__(
        self,
        url: str,
        channel: str,
        token: Token = None,
        since: Position | None = None,
        pace: ClientTimings | None = None,
    ) -> None:
        Channel.parse(channel)
        self.url, self.channel = socket_url(url), channel
        self.is_live = False
        """Whether the client is subscribed; False while it reconnects."""
        self._token = token
        self._timings = pace or ClientTimings()
        self._backoff = Backoff(self._timings)
        # The text before the drafts of a position is unknown here; the gateway sends it again, as snapshots.
        self._reader = Reader(since)
        self._has_position = since is not None
        self._texts = dict[UUID, Wrote]()
        self._resubscribe_backoff = Backoff(self._timings)
        self._ask_at: float | None = None
        self._garbled = 0
        self._events = self._follow()

    @property
    def position(self) -> Position | None:
        """The position after the last event, to resume from; None before the first subscription."""
        return self._reader.position if self._has_position else None

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> StreamEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Stop following the channel."""
        await self._events.aclose()

    async def until_end(self, execution_id: UUID) -> AsyncGenerator[StreamEvent]:
        """Yield all events until this execution ends, including its end.

        After `Reload` the execution may have ended already: look it up over the HTTP API.
        """
        async for event in self:
            yield event
            if isinstance(event, Happened) and event.ends(execution_id):
                return

    until_ended = until_end
    """The name of `until_end` in release 0.1."""

    async def _follow(self) -> AsyncGenerator[StreamEvent]:
        while True:
            token, opened_at = await self._request_token(), monotonic()
            try:
                async with aclosing(self._receive(token)) as events:
                    async for event in events:
                        yield event
            except Lost as lost:
                reason, back_in = str(lost), lost.back_in
                self._count_unreadable(lost)
            else:
                return
            finally:
                self.is_live = False
            if monotonic() - opened_at >= self._timings.reset_after:
                self._backoff.reset()
            delay = self._backoff.next_delay(back_in)
            logger.info("reconnecting to the gateway in %.1f s: %s", delay, reason)
            await asyncio.sleep(delay)

    async def _request_token(self) -> str:
        token = self._token() if callable(self._token) else self._token
        return (await token if isawaitable(token) else token) or ""

    def _count_unreadable(self, lost: Lost) -> None:
        """Raise once several frames in a row are unreadable; one may be a transmission error."""
        self._garbled = self._garbled + 1 if isinstance(lost, Garbled) else 0
        if self._garbled >= MAX_GARBLED:
            raise StreamRefused(
                f"the frames of {self.url} cannot be read ({lost}); check that it is a gateway, "
                "and update this program"
            )

    async def _receive(self, token: str) -> AsyncGenerator[StreamEvent]:
        async with open_connection(self.url, token, self._timings) as connection:
            await self._subscribe(connection)
            while True:
                now = monotonic()
                if self._ask_at is not None and self._ask_at <= now and not connection.is_subscribing:
                    await self._subscribe(connection)
                within = None if self._ask_at is None or connection.is_subscribing else self._ask_at - now
                frame = await connection.next_frame(within)
                event = None if frame is None else self._parse(connection, frame)
                if event is not None:
                    yield event

    async def _subscribe(self, connection: GatewayConnection) -> None:
        """Subscribe from the current position."""
        self._ask_at = None
        position = self.position
        await connection.subscribe(self.channel, position and position.to_dict())

    def _parse(self, connection: GatewayConnection, frame: FrozenDict) -> StreamEvent | None:
        """Return the event of a frame; None for frames without one, such as those of later versions."""
        try:
            if "payload" in frame:
                return self._apply(Envelope.from_dict(frame))
            if frame.get("type") == "sub_ok":
                connection.is_subscribing = False
                return self._on_subscribed(frame)
        except InvalidInput as error:
            raise Garbled(str(error)) from None
        if frame.get("type") == "sub_error":
            reason = frame.get("message") or "you may not watch this channel, or it does not exist"
            raise StreamRefused(f"{self.channel}: {reason}; check the channel's id and the token")
        return None

    def _on_subscribed(self, frame: FrozenDict) -> Reload | None:
        with reading("the answer to a subscription"):
            start = Position.from_dict({"epoch": valid_text(frame["epoch"], "epoch"), "seq": frame["seq"]})
            had_position, is_recovered = self._has_position, bool(frame["recovered"])
        epoch = start.epoch or ""
        self._reader.joined(epoch, start.seq, recovered=is_recovered and had_position)
        self._has_position = self.is_live = True
        # The reply sends everything that was missing.
        self._ask_at = None
        if is_recovered or not had_position:
            return None
        self._texts.clear()
        return Reload(epoch, start.seq)

    def _apply(self, envelope: Envelope) -> Happened | Wrote | None:
        match self._reader.take(envelope):
            case ReadOutcome.DROPPED:
                return None
            case ReadOutcome.RESYNC:
                if self._ask_at is None:
                    self._ask_at = monotonic() + self._resubscribe_backoff.next_delay()
                return None
            case ReadOutcome.APPLIED:
                self._garbled = 0
                self._backoff.reset()
                self._resubscribe_backoff.reset()
        return self._text_event(envelope) if envelope.seq is None else self._stored_event(envelope)

    def _stored_event(self, envelope: Envelope) -> Happened:
        if envelope.execution_id not in self._reader.drafts:
            self._texts.pop(envelope.execution_id, None)
        return Happened(envelope)

    def _text_event(self, envelope: Envelope) -> Wrote:
        execution_id = envelope.execution_id
        draft = self._reader.drafts[execution_id]
        step_number, attempt, _ = draft.place
        before, text = self._texts.get(execution_id), draft.content
        if before is None or before.step_number != step_number or not before.text:
            new = text
        elif before.attempt == attempt and text.startswith(before.text):
            new = text[len(before.text) :]
        else:
            new = ""
        event = Wrote(execution_id, step_number, attempt, text, new, draft.is_complete)
        self._texts[execution_id] = event
        return event
