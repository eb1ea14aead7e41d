"""Responses of OpenAI's API as runs of executions, and their conversations as sessions."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import OnBusy, SessionMessageRow
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.agent_domain.values import EMPTY, FrozenDict, json_text
from everstep.http_api.admissions import admission_of
from everstep.http_api.late_answers import read_to_end
from everstep.http_api.openai_errors import unusable
from everstep.http_api.openai_input import ConversationInput, output_schema
from everstep.http_api.problems import Refusal, not_found
from everstep.http_api.run_streams import RunReader
from everstep.http_api.schemas.openai_requests import ResponseRequest
from everstep.http_api.threads import BEGUN_EXECUTION, GivenAnswer, RunToFollow, ThreadMessageSent, Threads
from everstep.wires.projections import Projection, WireEvent
from everstep.wires.response_events import ResponseEvents, ResponseHead
from everstep.wires.response_items import parse_response_id, response_id
from everstep.wires.run_events import RequestView, RunEnded, RunEvent, RunPaused, RunStarted

NOTE = "openai"
"""The key in the metadata of a message for what its response was requested with, as text of JSON."""
PAGE = 200


class ResponseNote(BaseModel):
    """What a response was requested with."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    digest: str
    after: str | None = None
    """The previous response."""
    conversation: str | None = None
    segment: int = 0
    execution: str = ""
    is_background: bool = False
    is_structured: bool = False
    metadata: FrozenDict = EMPTY

    @property
    def response_id(self) -> str:
        """The response of the message that has the note."""
        return response_id(self.execution, self.segment)

    @classmethod
    def of_message(cls, row: SessionMessageRow) -> Self | None:
        """The note of a message; None for messages of other clients, whose metadata can be anything."""
        text, begun = row.metadata.get(NOTE), row.metadata.get(BEGUN_EXECUTION)
        if not isinstance(text, str):
            return None
        try:
            note = cls.model_validate_json(text)
            return note.model_copy(update={"execution": str(UUID(note.execution or str(begun)))})
        except ValueError:
            return None


class RunState(Projection):
    """How far an execution is: which run is its last, and what people are asked."""

    def __init__(self) -> None:
        self.segment = 0
        self.requests: tuple[RequestView, ...] = ()
        """The open requests, if the last run waits for people."""
        self.has_ended = False
        self.failure: tuple[str, str] | None = None

    @property
    def answer(self) -> Mapping[str, Any]:
        """Nothing that is sent."""
        return {}

    def encode(self, event: RunEvent) -> list[WireEvent]:
        """Read an event; nothing is sent."""
        match event:
            case RunStarted():
                self.segment, self.requests = event.segment, ()
            case RunPaused():
                self.requests = event.requests
            case RunEnded():
                self.has_ended = True
            case _:
                pass
        return []

    def fail(self, message: str, code: str) -> list[WireEvent]:
        """Remember that the log could not be read."""
        self.failure = message, code
        return []

    @property
    def open_ids(self) -> frozenset[str]:
        """The ids of the open requests."""
        return frozenset(request.id for request in self.requests)


@dataclass(frozen=True, slots=True)
class FollowedResponse:
    """A response, and the requests that were answered for it."""

    head: ResponseHead
    session_id: UUID
    answered: frozenset[str] = frozenset()

    @property
    def execution_id(self) -> UUID:
        """Its execution."""
        return UUID(self.head.execution_id)


@dataclass(frozen=True)
class ResponseThreads:
    """The responses of one caller."""

    threads: Threads
    request: Request

    def reader(self, session_id: UUID) -> RunReader:
        """A reader of a session's executions."""
        api, caller = self.threads.api, self.threads.caller
        admission = admission_of(api, caller, self.request)
        return RunReader(api.sessions_for(caller), caller, self.threads.logs, session_id, admission)

    async def open(self, followed: FollowedResponse, events: ResponseEvents) -> AsyncGenerator[bytes]:
        """Open the stream of a response; it ends with the response."""
        reader = self.reader(followed.session_id)
        return await reader.open(followed.execution_id, None, events, answered=followed.answered)

    async def snapshot(self, followed: FollowedResponse) -> ResponseEvents:
        """The response as it is stored now."""
        events = ResponseEvents(followed.head)
        reader = self.reader(followed.session_id)
        frames = await reader.open(followed.execution_id, None, events, until_head=True)
        await read_to_end(frames, events)
        return events

    # Finding.

    async def find_execution(self, id_: str) -> tuple[ExecutionRow, UUID, int]:
        """The execution of a response, its session, and which run the response is.

        Raises:
            Refusal: There is none that the caller may see.
        """
        try:
            execution_id, segment = parse_response_id(id_)
        except InvalidInput:
            raise not_found("response", id_) from None
        caller = self.threads.caller
        ref = ExecutionRef(execution_id, caller.tenant_id)
        row = await self.threads.api.sessions.client.store.execution(ref)
        is_root = row is not None and row.parent_execution_id is None
        if row is None or not is_root or not caller.scope.covers(row.user_id) or row.ref.session_id is None:
            raise not_found("response", id_)
        return row, row.ref.session_id, segment

    async def find(self, id_: str) -> FollowedResponse:
        """A response by its id; one whose run has not begun has to be the next of an execution that waits.

        Raises:
            Refusal: There is none that the caller may see.
        """
        row, session_id, segment = await self.find_execution(id_)
        answered = frozenset[str]()
        if segment:
            state = await self.read_state(row.ref.execution_id, session_id)
            if segment > state.segment + bool(state.requests):
                raise not_found("response", id_)
            answered = state.open_ids if segment > state.segment else answered
        found = await self.find_message(session_id, row.ref.execution_id, segment)
        note = found[1] if found else ResponseNote(digest="")
        before = response_id(str(row.ref.execution_id), segment - 1) if segment else None
        head = ResponseHead(
            str(row.ref.execution_id),
            segment,
            row.agent,
            row.created_at.timestamp(),
            str(session_id),
            note.after or before,
            note.conversation,
            is_background=note.is_background,
            is_structured=note.is_structured,
            metadata=note.metadata,
        )
        return FollowedResponse(head, session_id, answered)

    async def read_state(self, execution_id: UUID, session_id: UUID) -> RunState:
        """How far an execution is."""
        state = RunState()
        frames = await self.reader(session_id).open(execution_id, None, state, until_head=True)
        await read_to_end(frames, state)
        return state

    async def find_message(
        self, session_id: UUID, execution_id: UUID, segment: int
    ) -> tuple[SessionMessageRow, ResponseNote] | None:
        """The message that began a response, and its note; None if decisions about calls did."""
        async for row in self.messages(session_id):
            note = ResponseNote.of_message(row)
            if note and (note.execution, note.segment) == (str(execution_id), segment):
                return row, note
        return None

    async def messages(self, session_id: UUID) -> AsyncGenerator[SessionMessageRow]:
        """The messages of people, newest first."""
        store, cursor = self.threads.api.sessions.store, None
        while True:
            page = await store.messages(self.threads.caller.scope, session_id, cursor=cursor, limit=PAGE)
            for row in page.rows:
                if row.role is MessageRole.USER:
                    yield row
            if (cursor := page.cursor) is None:
                return

    # Creating.

    async def create(
        self, body: ResponseRequest, found: ConversationInput, given_key: str | None
    ) -> FollowedResponse:
        """Create the response of a request, or find the one that its first attempt created.

        Raises:
            Refusal: The previous response is not the last one of its conversation, or waits for other input.
        """
        previous = body.previous_response_id or (None if body.conversation_id else found.previous)
        note = ResponseNote(
            digest=found.digest(body.model, body.format),
            after=previous,
            conversation=body.conversation_id,
            is_background=bool(body.background),
            is_structured=body.format["type"] != "text",
            metadata=body.metadata or EMPTY,
        )
        creation = _Creation(self, body, found, given_key, note)
        if previous is not None:
            return await creation.follow_up(previous)
        if body.conversation_id is not None:
            return await creation.add_to(body.conversation_id)
        if found.decisions:
            raise unusable(
                "previous_response_id", "A decision needs `previous_response_id`, or `conversation`"
            )
        return await creation.send(f"response/{given_key or uuid4()}", given_key, 0, history=True)


@dataclass(frozen=True)
class _Creation:
    """One request for a response."""

    responses: ResponseThreads
    body: ResponseRequest
    found: ConversationInput
    given_key: str | None
    note: ResponseNote

    @property
    def threads(self) -> Threads:
        return self.responses.threads

    async def follow_up(self, previous: str) -> FollowedResponse:
        """The response after another one."""
        row, session_id, segment = await self.responses.find_execution(previous)
        if repeated := await self._find_first_attempt(session_id, previous):
            return repeated
        roots = await self.responses.reader(session_id).roots()
        if not roots or roots[0].ref.execution_id != row.ref.execution_id:
            raise _stale(previous)
        state = await self.responses.read_state(row.ref.execution_id, session_id)
        # Of several requests that continue one response, the first is carried out.
        key = f"after/{previous}"
        if self.found.decisions:
            # Decisions are checked against their requests, and repeating them changes nothing.
            return await self._answer(str(session_id), row, segment + 1, state, key)
        if segment != state.segment:
            raise _stale(previous)
        return await self._continue(str(session_id), row, state, key)

    async def add_to(self, conversation: str) -> FollowedResponse:
        """The next response of a conversation, which is created if it does not exist."""
        session_id, session = await self.threads.find(conversation)
        roots = await self.responses.reader(session_id).roots() if session else ()
        key = self.given_key or str(uuid4())
        if not roots or roots[0].status.is_terminal:
            return await self.send(conversation, key, 0, history=not roots)
        state = await self.responses.read_state(roots[0].ref.execution_id, session_id)
        if self.found.decisions:
            return await self._answer(conversation, roots[0], state.segment + 1, state, key)
        return await self._continue(conversation, roots[0], state, key)

    async def _continue(
        self, thread_id: str, row: ExecutionRow, state: RunState, key: str
    ) -> FollowedResponse:
        """Answer the questions of an execution that waits, or send the next message of its session."""
        questions = [request for request in state.requests if request.is_question]
        on_busy = self.body.everstep.on_busy
        if not self.found.text.strip() and not self.found.files:
            if not state.requests:
                raise unusable("input", "input is empty; send a message")
            # Only watch: other people decide.
            return self._followed(thread_id, row, state.segment + 1, state.open_ids)
        if len(questions) < len(state.requests) and on_busy is None:
            waits = [request for request in state.requests if not request.is_question]
            calls = ", ".join("a budget" if request.is_budget else request.call.name for request in waits)
            raise Refusal(
                409,
                "requests-open",
                "Requests are open",
                f"{calls} waits for a decision: send an mcp_approval_response, omit `input` to wait for "
                "others, or send everstep.on_busy with your message",
            )
        if len(questions) > 1 and on_busy is None:
            return await self._answer(thread_id, row, state.segment + 1, state, key)
        is_answer = bool(questions) and on_busy is not OnBusy.INTERRUPT
        return await self.send(thread_id, key, *((state.segment + 1, row) if is_answer else (0, None)))

    async def _answer(
        self, thread_id: str, row: ExecutionRow, segment: int, state: RunState, key: str
    ) -> FollowedResponse:
        """Decide about calls, and answer questions with the messages of the input, in their order."""
        questions = [request for request in state.requests if request.is_question]
        if len(questions) != len(self.found.texts):
            raise unusable(
                "input",
                f"{len(questions)} questions are open, and input has {len(self.found.texts)} messages; send "
                "one message for each question, in their order",
            )
        answers = [
            *self.found.decisions,
            *(
                GivenAnswer(UUID(request.id), text)
                for request, text in zip(questions, self.found.texts, strict=True)
            ),
        ]
        # The same answers change nothing; other ones are refused, as their requests are closed.
        run = await self.threads.answer(thread_id, answers, f"{key}/{self.note.digest}")
        if run.execution_id != row.ref.execution_id:
            raise _stale(response_id(str(row.ref.execution_id), segment - 1))
        return self._followed(thread_id, row, segment, run.answered, run)

    async def send(
        self,
        thread_id: str,
        key: str | None,
        segment: int,
        asking: ExecutionRow | None = None,
        *,
        history: bool = False,
    ) -> FollowedResponse:
        """Send a message to a session, or answer the question of an execution."""
        execution = "" if asking is None else str(asking.ref.execution_id)
        note = self.note.model_copy(update={"segment": segment, "execution": execution})
        found, body = self.found, self.body
        if not found.text.strip() and not found.files:
            raise unusable("input", "input is empty; send a message")
        sent = ThreadMessageSent(
            str(uuid4()) if key is None else key,
            found.text,
            found.files,
            run_id=str(uuid4()),
            on_busy=body.everstep.on_busy or OnBusy.ENQUEUE,
            model=body.everstep.model,
            output=output_schema(body.format, "text.format"),
            history=found.history if history else (),
            notes={NOTE: json_text(note.model_dump(mode="json"))},
        )
        try:
            run = await self.threads.send(thread_id, sent, key)
        except Refusal as refusal:
            if refusal.slug == "key-reused" and self.note.after:
                # Another request continued the same response at the same time.
                raise _stale(self.note.after) from None
            raise
        created = await self.threads.created_at(run.execution_id)
        answered = frozenset({run.question_id}) if run.question_id else frozenset[str]()
        head = self._head(run.execution_id, segment, created, run.session_id)
        return FollowedResponse(head, run.session_id, answered)

    def _followed(
        self,
        thread_id: str,
        row: ExecutionRow,
        segment: int,
        answered: frozenset[str],
        run: RunToFollow | None = None,
    ) -> FollowedResponse:
        session_id = run.session_id if run else row.ref.session_id
        assert session_id is not None, thread_id  # noqa: S101 -- it was found in its session
        head = self._head(row.ref.execution_id, segment, row.created_at.timestamp(), session_id)
        return FollowedResponse(head, session_id, answered)

    def _head(self, execution_id: UUID, segment: int, created_at: float, session_id: UUID) -> ResponseHead:
        return ResponseHead(
            str(execution_id),
            segment,
            self.body.model,
            created_at,
            str(session_id),
            self.note.after,
            self.note.conversation,
            is_background=self.note.is_background,
            is_structured=self.note.is_structured,
            metadata=self.note.metadata,
        )

    async def _find_first_attempt(self, session_id: UUID, previous: str) -> FollowedResponse | None:
        """The response that an earlier attempt of this request created.

        Raises:
            Refusal: Another request continued the same response.
        """
        async for row in self.responses.messages(session_id):
            note = ResponseNote.of_message(row)
            if note is None or note.after != previous:
                continue
            if note.digest != self.note.digest:
                raise _stale(previous)
            followed = await self.responses.find(note.response_id)
            return replace(followed, head=replace(followed.head, model=self.body.model))
        return None


def _stale(previous: str) -> Refusal:
    return Refusal(
        409,
        "previous-response-stale",
        "The conversation has continued",
        f"The conversation has continued after {previous}; send the id of its last response, or fork the "
        "execution",
    )


def input_items(row: SessionMessageRow | None) -> Sequence[dict[str, Any]]:
    """The message of a response as its input."""
    if row is None:
        return []
    content = [{"type": "input_text", "text": row.content}]
    return [
        {
            "type": "message",
            "id": f"msg_{row.id.hex}",
            "role": "user",
            "status": "completed",
            "content": content,
        }
    ]
