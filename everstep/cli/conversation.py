"""A conversation at a terminal: sends the typed lines to a session and shows its messages.

It uses only the public HTTP API.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.requests import RequestKind
from everstep.agent_domain.storage.sessions import OnBusy, Route, SessionStatus
from everstep.agent_domain.stream import session_messages
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.agent_domain.values import json_text, parse_json, thaw, truncate, valid_text
from everstep.cli import output
from everstep.cli.decisions import HOW_TO_DECIDE, parse_decision
from everstep.cli.remote import Declined, Remote
from everstep.cli.sessions import title_of
from everstep.cli.terminal import InputLine, InputLines, Screen
from everstep.cli.watch import Watch, open_watch
from everstep.http_api.schemas.attachment_responses import AttachmentResponse
from everstep.http_api.schemas.execution_responses import BudgetResponse, ExecutionResponse, Request
from everstep.http_api.schemas.responses import (
    Agents,
    Gateway,
    MessageAccepted,
    MessageResponse,
    PageResponse,
    Session,
)
from everstep.http_api.schemas.step_responses import BecauseResponse
from everstep.streams.client_events import StreamEvent, Wrote

POLL_SECONDS = 0.3
REQUEST_POLL_SECONDS = 1.0
"""Seconds between two polls while a question is open: it may be answered elsewhere, or be closed."""
PENDING_HINT_SECONDS = 3.0
"""Seconds after which a worker should have picked an execution up."""

MAX_EARLIER_MESSAGES = 10
"""How many earlier messages are shown when a session is resumed."""
PAGE_SIZE = 200

_LINE_REFUSED = frozenset({409, 413, 422})
"""The statuses with which the API refuses one line; the next line may be accepted."""
_DECISION_REFUSED = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""The same for the answer to a request, which may be closed by now, or another person's to decide."""
_HIDDEN_MESSAGES = frozenset(
    told.content
    for told in (
        session_messages.queued_announcement(),
        session_messages.started_announcement(),
        session_messages.resumed_announcement(),
    )
)
_ROUTE_TEXTS: Mapping[Route, str] = {
    Route.QUEUE: "queued behind the running execution",
    Route.STEER: "the agent reads it before its next step",
    Route.INTERRUPT: "the running execution is cancelled",
}


@dataclass
class Conversation:
    """Sends the typed lines to a session, and shows its messages, requests and status."""

    remote: Remote
    lines: InputLines
    screen: Screen
    on_busy: OnBusy
    agent: str | None
    session_id: UUID | None
    resources: AsyncExitStack
    """Closes the connection to the gateway when the conversation is over."""
    files: Sequence[Attachment] = ()
    """Files that the next message takes along."""
    running: set[UUID] = field(default_factory=set[UUID])
    """Executions of the session that have not ended."""
    open_request: Request | None = None
    """The request that waits for an answer."""
    is_open: bool = False
    """Whether the agent or the session was found."""
    has_sent: bool = False
    _shown_request: UUID | None = None
    """The request that was shown last."""
    _shown_at: float = 0.0
    _last_read: UUID | None = None
    """The newest message that was read."""
    _own_messages: set[UUID] = field(default_factory=set[UUID])
    _last_execution: UUID | None = None
    """The execution that received the last line."""
    _was_refused: bool = False
    _may_have_successor: bool = False
    """Whether a successor may start: an execution that ends with unread messages has one, a moment later."""
    _pending_since: float | None = None
    _is_at_end: bool = False
    _has_failed: bool = False
    _watch: Watch | None = None
    _partial_answers: dict[UUID, Wrote] = field(default_factory=dict[UUID, Wrote])
    """The streamed text that was shown, by execution, until its answer is complete."""
    _answered_executions: set[UUID] = field(default_factory=set[UUID])

    @property
    def is_idle(self) -> bool:
        """Whether no execution of the session is running."""
        return not self.running

    @property
    def has_succeeded(self) -> bool:
        """Whether the last line was accepted and its execution completed."""
        return self.is_idle and not self._was_refused and not self._has_failed

    async def open(self) -> None:
        """Check that the agent or the session exists.

        Raises:
            InvalidInput: There is no such agent or session.
        """
        if self.session_id is None or self.agent is not None:
            known = await self.remote.get(Agents, "/agent/agents")
            names = [agent.name for agent in known.items]
            if self.agent is not None and self.agent not in names:
                raise UnknownName("agent", self.agent, sorted(names))
            if self.session_id is None:
                self.screen.note(f"talking to {self.agent or known.default}")
        if self.session_id is not None:
            await self._resume()
        self.is_open = True

    async def run(self) -> None:
        """Run until the input ends; lines of a pipe are answered first."""
        while True:
            await self._poll()
            is_quiet = self.open_request is None and not self.running and not self._may_have_successor
            if self._is_at_end:
                if is_quiet or self.open_request:
                    break
                await self._wait_for_news()
                continue
            if not is_quiet and self.open_request is None and not self._may_read_line:
                await self._wait_for_news()
                continue
            try:
                line = await self._read_line(is_quiet=is_quiet)
            except TimeoutError:
                continue
            if line is None and self.lines.is_terminal:
                return
            if line is None:
                self._is_at_end = True
            elif line.text.strip():
                await self._handle_line(line)
        if self._last_execution is not None and self.is_idle:
            last = await self.remote.get(ExecutionResponse, f"/agent/executions/{self._last_execution}")
            self._has_failed = last.status is not ExecutionStatus.COMPLETED

    @property
    def _may_read_line(self) -> bool:
        """Whether a line is read while an agent works: the first one of a pipe, and every typed one."""
        return self.lines.is_terminal or self._last_execution is None

    async def _wait_for_news(self) -> None:
        """Wait until there may be news."""
        if self._watch is None:
            await asyncio.sleep(POLL_SECONDS)
            return
        while not await self._watch.wait(POLL_SECONDS):
            # Without a terminal, an answer is printed when it is complete.
            pass

    async def _read_line(self, *, is_quiet: bool) -> InputLine | None:
        if is_quiet or self.open_request:
            self.screen.prompt()
        often = REQUEST_POLL_SECONDS if self.open_request else POLL_SECONDS
        line = await self.lines.next(None if is_quiet else often)
        if line is not None:
            self.screen.on_line()
        return line

    # State of the session.

    async def _resume(self) -> None:
        try:
            session = await self.remote.get(Session, f"/agent/sessions/{self.session_id}")
        except Declined as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise InvalidInput(f"{error}; `everstep sessions` lists them") from None
        self.screen.note(f"session {session.id}: {title_of(session)}")
        if session.status is not SessionStatus.ACTIVE:
            self.screen.note(f"it is {session.status} and takes no messages")
        # With many subagents these are not among the newest. PAUSED is read twice, as the status may change.
        for status in (ExecutionStatus.PAUSED, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED):
            page = await self._list_executions(status=status)
            self.running.update(row.id for row in page.items)

    async def _list_executions(self, **wanted: object) -> PageResponse[ExecutionResponse]:
        found = {"session_id": self.session_id, **wanted}
        return await self.remote.get(PageResponse[ExecutionResponse], "/agent/executions", **found)

    async def _poll(self) -> None:
        """Show new messages and open requests.

        The executions are read before the messages, so that no message of an ended one is missed.
        """
        if self.session_id is None:
            return
        if self._watch is None:
            self._watch = await self._open_watch()
        # Taken before the API is read, which then returns everything that precedes this text.
        wrote = [*map(self._watch.latest_text, self.running)]
        rows = await self._load_executions()
        self._may_have_successor = self._may_have_successor and bool(self.running)
        self.running = {row.id for row in rows if not row.status.is_terminal}
        requests = [request for row in rows for request in await self._list_requests(row)]
        open_ids = {str(request.id) for request in requests}
        for message in await self._unread_messages():
            self._show_message(message, open_ids)
        self.open_request = min(requests, key=lambda request: request.created_at, default=None)
        if self.open_request and self.open_request.id != self._shown_request:
            self._show_request(self.open_request)
        await self._warn_if_pending(rows)
        speakers = {row.id for row in rows if row.parent_execution_id is None}
        for each in wrote:
            if each and each.execution_id in speakers:
                self._show_partial(each)

    # Streamed text.

    async def _open_watch(self) -> Watch:
        """Subscribe to the session, if there is a gateway."""
        try:
            url = (await self.remote.get(Gateway, "/agent/gateway")).url
        except (Declined, InvalidInput):
            # There is no gateway, or the API is older than this route.
            url = None
        channel = f"agent.session.{self.session_id}"
        return await self.resources.enter_async_context(
            open_watch(url, channel, self.remote.token, self._on_event)
        )

    def _on_event(self, event: StreamEvent) -> None:
        """Continue a text that is already shown; for any other event, wake the loop to poll the API first."""
        before = self._partial_answers.get(event.execution_id) if isinstance(event, Wrote) else None
        if before and isinstance(event, Wrote) and _attempt_of(before) == _attempt_of(event):
            self._show_partial(event)
        elif self.lines.is_terminal and self.running:
            self.lines.wake()

    def _show_partial(self, wrote: Wrote) -> None:
        execution_id = wrote.execution_id
        if (
            not self.lines.is_terminal
            or execution_id not in self.running
            or execution_id in self._answered_executions
        ):
            return
        before = self._partial_answers.get(execution_id)
        if before and _attempt_of(before) > _attempt_of(wrote):
            return
        shown = before.text if before and _attempt_of(before) == _attempt_of(wrote) else ""
        if shown.startswith(wrote.text):
            # A new connection repeats the text.
            return
        if not wrote.text.startswith(shown):
            shown = ""
        if new := wrote.text[len(shown) :]:
            self.screen.write(new, is_new=not shown)
        self._partial_answers[execution_id] = wrote

    def _show_answer(self, message: MessageResponse) -> None:
        """Show an answer, or the rest of it if a part was streamed."""
        execution_id = message.execution_id
        partial = self._partial_answers.pop(execution_id, None) if execution_id else None
        if execution_id:
            self._answered_executions.add(execution_id)
        shown = partial.text.rstrip() if partial else ""
        if not shown or not message.content.startswith(shown):
            self.screen.say(message.content)
            return
        if rest := message.content[len(shown) :].rstrip():
            self.screen.write(rest, is_new=False)
        self.screen.end()

    async def _load_executions(self) -> list[ExecutionResponse]:
        """The newest executions, and those that had not ended at the previous poll."""
        rows = {row.id: row for row in (await self._list_executions(limit=20)).items}
        for known in self.running - rows.keys():
            rows[known] = await self.remote.get(ExecutionResponse, f"/agent/executions/{known}")
        return [*rows.values()]

    async def _list_requests(self, row: ExecutionResponse) -> list[Request]:
        if row.status is not ExecutionStatus.PAUSED:
            return []
        return (await self.remote.get(PageResponse[Request], f"/agent/executions/{row.id}/requests")).items

    async def _warn_if_pending(self, rows: list[ExecutionResponse]) -> None:
        """Print why the executions do not begin, after some seconds."""
        mine = [row for row in rows if row.id in self.running]
        waiting = {row.status for row in mine} == {ExecutionStatus.PENDING}
        if not waiting:
            self._pending_since = None
        elif self._pending_since is None:
            self._pending_since = monotonic()
        elif 0 < self._pending_since < monotonic() - PENDING_HINT_SECONDS:
            path = f"/agent/executions/{mine[0].id}/because"
            explained = await self.remote.get(BecauseResponse, path, limit=1)
            self.screen.note(output.pending_hint(explained.because))
            self._pending_since = float("inf")

    async def _unread_messages(self) -> list[MessageResponse]:
        """Unread messages, oldest first; for a resumed session, the last ones."""
        new: list[MessageResponse] = []
        cursor, is_return = None, self._last_read is None and not self._own_messages
        while True:
            path = f"/agent/sessions/{self.session_id}/messages"
            page = await self.remote.get(PageResponse[MessageResponse], path, limit=PAGE_SIZE, cursor=cursor)
            for message in page.items:
                if message.id == self._last_read:
                    break
                new.append(message)
            else:
                cursor = page.next_cursor
                if cursor and not (is_return and len(_without_info(new)) >= MAX_EARLIER_MESSAGES):
                    continue
            break
        if new:
            self._last_read = new[0].id
        return (_without_info(new)[:MAX_EARLIER_MESSAGES] if is_return else new)[::-1]

    # Output.

    def _show_message(self, message: MessageResponse, open_ids: set[str]) -> None:
        if message.id in self._own_messages or message.metadata.get("request_id") in open_ids:
            return
        match message.role:
            case MessageRole.USER:
                self.screen.say(f"> {message.content}{_file_names(message)}")
            case MessageRole.ASSISTANT:
                self._show_answer(message)
            case MessageRole.NOTIFICATION:
                self.screen.say(f"! {message.content}")
            case MessageRole.INFO if message.content not in _HIDDEN_MESSAGES and not _is_step_end(message):
                self.screen.note(f"{truncate(message.content, output.WIDTH)}{_file_names(message)}")
            case MessageRole.INFO:
                pass

    def _show_request(self, request: Request) -> None:
        for text in _request_texts(request):
            self.screen.say(text)
        self._shown_request, self._shown_at = request.id, monotonic()

    # Input.

    async def _handle_line(self, line: InputLine) -> None:
        """Send a line, as the answer to the open request unless it was typed before the request was shown."""
        asked = self.open_request
        if self.lines.is_terminal and line.at < self._shown_at:
            asked = None
        self.has_sent = self._was_refused = True
        try:
            if asked is None:
                await self._send(line.text, on_busy=self.on_busy)
            elif asked.kind is CallNeed.INPUT:
                await self._send(line.text, request_id=str(asked.id))
            elif asked.kind is RequestKind.BUDGET:
                await self._raise_budget(asked, line.text)
            else:
                await self._decide(asked, line.text)
            self._was_refused = False
        except Declined as error:
            if error.status not in _LINE_REFUSED and not (asked and error.status in _DECISION_REFUSED):
                raise
            self._show_refusal(str(error))
        except InvalidInput as error:
            self._show_refusal(str(error))

    def _show_refusal(self, why: str) -> None:
        self.screen.say(f"refused: {why}")
        # Show the request again.
        self._shown_request = None

    async def _upload(self) -> list[str]:
        """Upload the files that the next message takes along."""
        files = [
            await self.remote.upload(AttachmentResponse, "/agent/attachments", each) for each in self.files
        ]
        return [str(each.id) for each in files]

    async def _send(self, text: str, **given: str) -> None:
        body: dict[str, Any] = {"content": valid_text(text, "the line"), **given}
        if self.files:
            body["attachments"] = await self._upload()
        if self.agent is not None:
            body["agent"] = self.agent
        is_new = self.session_id is None
        path = "/agent/messages" if is_new else f"/agent/sessions/{self.session_id}/messages"
        sent = await self.remote.post(MessageAccepted, path, body)
        self.session_id, self.files = sent.session_id, ()
        if sent.route is not Route.ANSWER or self._last_execution is None:
            self._last_execution = sent.execution_id
        self._own_messages.add(sent.message.id)
        self.running.add(sent.execution_id)
        self._may_have_successor = sent.route is Route.STEER
        if is_new:
            self.screen.note(f"session {self.session_id}")
        if sent.route in _ROUTE_TEXTS:
            self.screen.note(_ROUTE_TEXTS[sent.route])

    async def _decide(self, request: Request, text: str) -> None:
        verdict = parse_decision(text)
        path = f"/agent/executions/{request.execution_id}/approvals/{request.id}"
        await self.remote.post(Request, path, {**verdict, "args_digest": request.args_digest})
        self._last_execution = self._last_execution or request.execution_id
        self.screen.note(f"{verdict['decision']}: {request.tool}")

    async def _raise_budget(self, request: Request, text: str) -> None:
        """Raise the budget if the line is a number; send it as a message otherwise."""
        total = _number(text)
        if total is None:
            await self._send(text, on_busy=self.on_busy)
            return
        asked = request.request
        path = f"/agent/executions/{request.execution_id}/budget"
        await self.remote.post(BudgetResponse, path, {asked["unit"]: total, "scope": asked["scope"]})
        self._last_execution = self._last_execution or request.execution_id
        self.screen.note(f"raised to {total:g} {asked['unit']}")


def _number(text: str) -> int | float | None:
    try:
        value: object = parse_json(text.strip())
    except InvalidInput:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _file_names(message: MessageResponse) -> str:
    return "".join(f" [{each.name}]" for each in message.attachments)


def _attempt_of(wrote: Wrote) -> tuple[int, int]:
    return wrote.step_number, wrote.attempt


def _without_info(messages: list[MessageResponse]) -> list[MessageResponse]:
    return [message for message in messages if message.role is not MessageRole.INFO]


def _is_step_end(message: MessageResponse) -> bool:
    """Whether this is the message for the end of a step, whose start and calls were shown."""
    number = message.metadata.get("step_number")
    return number is not None and message.content.startswith(f"Completed step {number}")


def _request_texts(request: Request) -> Iterator[str]:
    """The lines that show a request and how to answer it."""
    if request.kind is CallNeed.APPROVAL:
        yield f"{request.tool} waits for approval: {json_text(thaw(request.args))}"
        others = f"decided by others: {', '.join(request.approver)}"
        yield HOW_TO_DECIDE if request.may_decide else others
        return
    if request.kind is RequestKind.BUDGET:
        yield f"the budget is exhausted: {output.exhausted_text(request.request)}"
        others = f"raised by others: {', '.join(request.approver)}"
        yield "type a new total to raise it" if request.may_decide else others
        return
    yield str(request.request.get("prompt", ""))
    if choices := request.request.get("choices"):
        yield f"choices: {', '.join(choices)}"
    if schema := request.request.get("schema"):
        yield f"answer with JSON that fits {json_text(thaw(schema))}"
