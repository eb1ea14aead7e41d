"""A conversation at a terminal: sends the typed lines to a session and shows its messages.

It uses only the public HTTP API.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.sessions import OnBusy, Route, SessionStatus
from everstep.agent_domain.stream import session_messages
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.agent_domain.values import cut, frozen_map, json_text, parse_json, thaw, valid_text
from everstep.cli import output
from everstep.cli.remote import Declined, Remote
from everstep.cli.sessions import title_of
from everstep.cli.terminal import Line, Lines, Screen
from everstep.cli.watch import Watch, watching
from everstep.http_api.schemas.execution_responses import Execution, Request
from everstep.http_api.schemas.responses import Agents, Gateway, Listed, Message, MessageAccepted, Session
from everstep.streams.client_events import News, Wrote

LOOK_SECONDS = 0.3
ASKING_SECONDS = 1.0
"""Seconds between two polls while a question is open: it may be answered elsewhere, or be closed."""
PATIENCE_SECONDS = 3.0
"""Seconds after which a worker should have picked an execution up."""

SHOWN = 10
"""How many earlier messages are shown when a session is resumed."""
PAGE = 200

HOW_TO_DECIDE = "[a]pprove, [d]eny (reason), [e]dit JSON"

_MEND = frozenset({409, 413, 422})
"""The statuses with which the API refuses one line; the next line may be accepted."""
_UNTOLD = frozenset(
    told.content
    for told in (session_messages.queued(), session_messages.started(), session_messages.resumed())
)
_TAKEN: Mapping[Route, str] = {
    Route.QUEUE: "queued behind the running execution",
    Route.STEER: "the agent reads it before its next step",
    Route.INTERRUPT: "the running execution is cancelled",
}


@dataclass
class Conversation:
    """Sends the typed lines to a session, and shows its messages, requests and status."""

    remote: Remote
    lines: Lines
    screen: Screen
    on_busy: OnBusy
    agent: str | None
    session_id: UUID | None
    meanwhile: AsyncExitStack
    """Closes the connection to the gateway when the conversation is over."""
    under_way: set[UUID] = field(default_factory=set[UUID])
    """Executions of the session that have not ended."""
    asked: Request | None = None
    """The request that waits for an answer."""
    is_open: bool = False
    """Whether the agent or the session was found."""
    has_spoken: bool = False
    _shown: UUID | None = None
    """The request that was shown last."""
    _shown_at: float = 0.0
    _told: UUID | None = None
    """The newest message that was read."""
    _own: set[UUID] = field(default_factory=set[UUID])
    _said: UUID | None = None
    """The execution that received the last line."""
    _was_refused: bool = False
    _may_follow: bool = False
    """Whether a successor may start: an execution that ends with unread messages has one, a moment later."""
    _pending_since: float | None = None
    _is_at_end: bool = False
    _failed: bool = False
    _watch: Watch | None = None
    _speaking: dict[UUID, Wrote] = field(default_factory=dict[UUID, Wrote])
    """The streamed text that was shown, by execution, until its answer is complete."""
    _answered: set[UUID] = field(default_factory=set[UUID])

    @property
    def is_settled(self) -> bool:
        """Whether no execution of the session is running."""
        return not self.under_way

    @property
    def went_well(self) -> bool:
        """Whether the last line was accepted and its execution completed."""
        return self.is_settled and not self._was_refused and not self._failed

    async def open(self) -> None:
        """Check that the agent or the session exists.

        Raises:
            InvalidInput: There is no such agent or session.
        """
        if self.session_id is None or self.agent is not None:
            known = await self.remote.get(Agents, "/agent/agents")
            names = [agent.name for agent in known.items]
            if self.agent is not None and self.agent not in names:
                raise InvalidInput(f"No agent named '{self.agent}'. Choose from: {', '.join(sorted(names))}")
            if self.session_id is None:
                self.screen.whisper(f"talking to {self.agent or known.default}")
        if self.session_id is not None:
            await self._come_back()
        self.is_open = True

    async def go_on(self) -> None:
        """Run until the input ends; lines of a pipe are answered first."""
        while True:
            await self._look()
            is_quiet = self.asked is None and not self.under_way and not self._may_follow
            if self._is_at_end:
                if is_quiet or self.asked:
                    break
                await self._rest()
                continue
            if not is_quiet and self.asked is None and not self._may_speak:
                await self._rest()
                continue
            try:
                line = await self._line(is_quiet=is_quiet)
            except TimeoutError:
                continue
            if line is None and self.lines.is_terminal:
                return
            if line is None:
                self._is_at_end = True
            elif line.text.strip():
                await self._take(line)
        if self._said is not None and self.is_settled:
            last = await self.remote.get(Execution, f"/agent/executions/{self._said}")
            self._failed = last.status is not ExecutionStatus.COMPLETED

    @property
    def _may_speak(self) -> bool:
        """Whether a line is read while an agent works: the first one of a pipe, and every typed one."""
        return self.lines.is_terminal or self._said is None

    async def _rest(self) -> None:
        """Wait until there may be news."""
        if self._watch is None:
            await asyncio.sleep(LOOK_SECONDS)
            return
        while not await self._watch.rest(LOOK_SECONDS):
            # Without a terminal, an answer is printed when it is complete.
            pass

    async def _line(self, *, is_quiet: bool) -> Line | None:
        if is_quiet or self.asked:
            self.screen.prompt()
        often = ASKING_SECONDS if self.asked else LOOK_SECONDS
        line = await self.lines.next(None if is_quiet else often)
        if line is not None:
            self.screen.typed()
        return line

    # State of the session.

    async def _come_back(self) -> None:
        try:
            session = await self.remote.get(Session, f"/agent/sessions/{self.session_id}")
        except Declined as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise InvalidInput(f"{error}; `everstep sessions` lists them") from None
        self.screen.whisper(f"session {session.id}: {title_of(session)}")
        if session.status is not SessionStatus.ACTIVE:
            self.screen.whisper(f"it is {session.status} and takes no messages")
        # With many subagents these are not among the newest. PAUSED is read twice, as the status may change.
        for status in (ExecutionStatus.PAUSED, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED):
            page = await self._executions(status=status)
            self.under_way.update(row.id for row in page.items)

    async def _executions(self, **wanted: object) -> Listed[Execution]:
        found = {"session_id": self.session_id, **wanted}
        return await self.remote.get(Listed[Execution], "/agent/executions", **found)

    async def _look(self) -> None:
        """Show new messages and open requests.

        The executions are read before the messages, so that no message of an ended one is missed.
        """
        if self.session_id is None:
            return
        if self._watch is None:
            self._watch = await self._watching()
        # Taken before the API is read, which then returns everything that precedes this text.
        wrote = [*map(self._watch.wrote, self.under_way)]
        rows = await self._rows()
        self._may_follow = self._may_follow and bool(self.under_way)
        self.under_way = {row.id for row in rows if row.status not in output.ENDED}
        requests = [request for row in rows for request in await self._requests(row)]
        open_ids = {str(request.id) for request in requests}
        for message in await self._news():
            self._tell(message, open_ids)
        self.asked = min(requests, key=lambda request: request.created_at, default=None)
        if self.asked and self.asked.id != self._shown:
            self._show(self.asked)
        self._wonder(rows)
        speakers = {row.id for row in rows if row.parent_execution_id is None}
        for each in wrote:
            if each and each.execution_id in speakers:
                self._speak(each)

    # Streamed text.

    async def _watching(self) -> Watch:
        """Subscribe to the session, if there is a gateway."""
        try:
            url = (await self.remote.get(Gateway, "/agent/gateway")).url
        except (Declined, InvalidInput):
            # There is no gateway, or the API is older than this route.
            url = None
        channel = f"agent.session.{self.session_id}"
        return await self.meanwhile.enter_async_context(watching(url, channel, self.remote.token, self._hear))

    def _hear(self, news: News) -> None:
        """Continue a text that is already shown; for any other event, wake the loop to poll the API first."""
        before = self._speaking.get(news.execution_id) if isinstance(news, Wrote) else None
        if before and isinstance(news, Wrote) and _attempt(before) == _attempt(news):
            self._speak(news)
        elif self.lines.is_terminal and self.under_way:
            self.lines.wake()

    def _speak(self, wrote: Wrote) -> None:
        of = wrote.execution_id
        if not self.lines.is_terminal or of not in self.under_way or of in self._answered:
            return
        before = self._speaking.get(of)
        if before and _attempt(before) > _attempt(wrote):
            return
        shown = before.text if before and _attempt(before) == _attempt(wrote) else ""
        if shown.startswith(wrote.text):
            # A new connection repeats the text.
            return
        if not wrote.text.startswith(shown):
            shown = ""
        if new := wrote.text[len(shown) :]:
            self.screen.write(new, is_new=not shown)
        self._speaking[of] = wrote

    def _answer(self, message: Message) -> None:
        """Show an answer, or the rest of it if a part was streamed."""
        of = message.execution_id
        spoken = self._speaking.pop(of, None) if of else None
        if of:
            self._answered.add(of)
        shown = spoken.text.rstrip() if spoken else ""
        if not shown or not message.content.startswith(shown):
            self.screen.say(message.content)
            return
        if rest := message.content[len(shown) :].rstrip():
            self.screen.write(rest, is_new=False)
        self.screen.end()

    async def _rows(self) -> list[Execution]:
        """The newest executions, and those that had not ended at the previous poll."""
        rows = {row.id: row for row in (await self._executions(limit=20)).items}
        for known in self.under_way - rows.keys():
            rows[known] = await self.remote.get(Execution, f"/agent/executions/{known}")
        return [*rows.values()]

    async def _requests(self, row: Execution) -> list[Request]:
        if row.status is not ExecutionStatus.PAUSED:
            return []
        return (await self.remote.get(Listed[Request], f"/agent/executions/{row.id}/requests")).items

    def _wonder(self, rows: list[Execution]) -> None:
        """Print a hint if no worker starts an execution."""
        waiting = {row.status for row in rows if row.id in self.under_way} == {ExecutionStatus.PENDING}
        if not waiting:
            self._pending_since = None
        elif self._pending_since is None:
            self._pending_since = monotonic()
        elif 0 < self._pending_since < monotonic() - PATIENCE_SECONDS:
            self.screen.whisper(f"pending: {output.NOBODY}")
            self._pending_since = float("inf")

    async def _news(self) -> list[Message]:
        """Unread messages, oldest first; for a resumed session, the last ones."""
        new: list[Message] = []
        cursor, is_return = None, self._told is None and not self._own
        while True:
            path = f"/agent/sessions/{self.session_id}/messages"
            page = await self.remote.get(Listed[Message], path, limit=PAGE, cursor=cursor)
            for message in page.items:
                if message.id == self._told:
                    break
                new.append(message)
            else:
                cursor = page.next_cursor
                if cursor and not (is_return and len(_aloud(new)) >= SHOWN):
                    continue
            break
        if new:
            self._told = new[0].id
        return (_aloud(new)[:SHOWN] if is_return else new)[::-1]

    # Output.

    def _tell(self, message: Message, open_ids: set[str]) -> None:
        if message.id in self._own or message.metadata.get("request_id") in open_ids:
            return
        match message.role:
            case MessageRole.USER:
                self.screen.say(f"> {message.content}")
            case MessageRole.ASSISTANT:
                self._answer(message)
            case MessageRole.NOTIFICATION:
                self.screen.say(f"! {message.content}")
            case MessageRole.INFO if message.content not in _UNTOLD and not _is_step_end(message):
                self.screen.whisper(cut(message.content, output.WIDTH))
            case MessageRole.INFO:
                pass

    def _show(self, request: Request) -> None:
        for text in _asking(request):
            self.screen.say(text)
        self._shown, self._shown_at = request.id, monotonic()

    # Input.

    async def _take(self, line: Line) -> None:
        """Send a line, as the answer to the open request unless it was typed before the request was shown."""
        asked = self.asked
        if self.lines.is_terminal and line.at < self._shown_at:
            asked = None
        self.has_spoken = self._was_refused = True
        try:
            if asked is None:
                await self._say(line.text, on_busy=self.on_busy)
            elif asked.kind is CallNeed.INPUT:
                await self._say(line.text, request_id=str(asked.id))
            else:
                await self._decide(asked, line.text)
            self._was_refused = False
        except Declined as error:
            if error.status not in _MEND and not (asked and error.status == HTTPStatus.NOT_FOUND):
                raise
            self._refuse(str(error))
        except InvalidInput as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        self.screen.say(f"refused: {why}")
        # Show the request again.
        self._shown = None

    async def _say(self, text: str, **given: str) -> None:
        body = {"content": valid_text(text, "the line"), **given}
        if self.agent is not None:
            body["agent"] = self.agent
        is_new = self.session_id is None
        path = "/agent/messages" if is_new else f"/agent/sessions/{self.session_id}/messages"
        sent = await self.remote.post(MessageAccepted, path, body)
        self.session_id = sent.session_id
        if sent.route is not Route.ANSWER or self._said is None:
            self._said = sent.execution_id
        self._own.add(sent.message.id)
        self.under_way.add(sent.execution_id)
        self._may_follow = sent.route is Route.STEER
        if is_new:
            self.screen.whisper(f"session {self.session_id}")
        if sent.route in _TAKEN:
            self.screen.whisper(_TAKEN[sent.route])

    async def _decide(self, request: Request, text: str) -> None:
        decided = decision(text)
        path = f"/agent/executions/{request.execution_id}/approvals/{request.id}"
        await self.remote.post(Request, path, {**decided, "args_digest": request.args_digest})
        self._said = self._said or request.execution_id
        self.screen.whisper(f"{decided['decision']}: {request.tool}")


def _attempt(wrote: Wrote) -> tuple[int, int]:
    return wrote.step_number, wrote.attempt


def _aloud(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.role is not MessageRole.INFO]


def _is_step_end(message: Message) -> bool:
    """Whether this is the message for the end of a step, whose start and calls were shown."""
    number = message.metadata.get("step_number")
    return number is not None and message.content.startswith(f"Completed step {number}")


def _asking(request: Request) -> Iterator[str]:
    """The lines that show a request and how to answer it."""
    if request.kind is CallNeed.APPROVAL:
        yield f"{request.tool} waits for approval: {json_text(thaw(request.args))}"
        yield HOW_TO_DECIDE
        return
    yield str(request.request.get("prompt", ""))
    if choices := request.request.get("choices"):
        yield f"choices: {', '.join(choices)}"
    if schema := request.request.get("schema"):
        yield f"answer with JSON that fits {json_text(thaw(schema))}"


def decision(text: str) -> dict[str, Any]:
    """The decision about a call, as the API expects it.

    Raises:
        InvalidInput: The line is not a decision.
    """
    word, _, rest = text.strip().partition(" ")
    rest = valid_text(rest.strip(), "the line")
    match word.lower():
        case "a" | "approve" if not rest:
            return {"decision": "approve"}
        case "d" | "deny":
            return {"decision": "deny", "reason": rest or None}
        case "e" | "edit" if rest:
            args = frozen_map(parse_json(rest, "what follows"), "what follows")
            return {"decision": "edit", "args": thaw(args)}
        case _:
            raise InvalidInput("type a, or d and an optional reason, or e and all arguments as JSON")
