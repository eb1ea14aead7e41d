"""Conversations of other protocols as sessions: the session of a thread, its messages, answers to requests.

Clients of these protocols name their threads, messages and runs themselves. The ids of sessions and messages
derive from those names and from the caller, so a repeated request finds what the first one created.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid5

from everstep.agent_domain.capabilities.rights import CANCEL, command_decider
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.storage.sessions import ExecutionFilter, NewSession, OnBusy, Route, SessionRow
from everstep.agent_domain.values import EMPTY, frozen_map, json_text
from everstep.client.budget_raising import budget_decider
from everstep.client.execution import Execution, now
from everstep.client.user_messages import UserMessage
from everstep.http_api.auth import usable_model
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api, Logs
from everstep.http_api.idempotency import RequestKey, key_conflict
from everstep.http_api.problems import Refusal, forbidden, no_gateway, not_found
from everstep.http_api.schemas.request_bodies import NewTotalSent
from everstep.wires.run_log import FromAnswers, FromSeq, Start
from everstep.wires.thread_messages import CLIENT_MESSAGE_ID

_NAMESPACE = UUID("4c0a4f0e-6f4e-4d0c-9d0f-2b6f7f0f9a31")
"""The namespace of sessions that derive from threads; it must never change."""

MAX_NAME = 500
"""The maximum length of the client's names of threads, runs and messages, in characters."""
CLIENT_RUN_ID = "client_run_id"
"""The key in the metadata of a message for the client's name of the run that it began."""
BEGUN_EXECUTION = "begun_execution_id"
"""The key in the metadata of a message with notes for the execution that it begins, if it begins one."""
MAX_ROOTS = 20
"""How many of a session's latest executions are searched for the requests that are answered."""


@dataclass(frozen=True, slots=True)
class ThreadMessageSent:
    """A message that a client adds to a thread."""

    id: str
    text: str
    attachments: Sequence[Any] = ()
    run_id: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE
    model: str | None = None
    output: Any = None
    """The JSON schema of the result, instead of the agent's."""
    history: Messages = ()
    """The conversation before the message, for a new thread."""
    title: str | None = None
    """The title of a new thread; by default a model writes one, or the message has it."""
    notes: Mapping[str, Any] = EMPTY
    """More metadata of the message. A message that is sent again has to have the same."""


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer to a request, or a refusal to give one."""

    request_id: UUID
    value: Any = None
    """The answer to a question."""
    approved: bool | None = None
    """The decision about a call."""
    reason: str | None = None
    args: Mapping[str, Any] | None = None
    """Other arguments for an approved call."""
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class RunToFollow:
    """The execution that a request concerns, and where its events begin for the sender."""

    session_id: UUID
    execution_id: UUID
    start: Start = None
    answered: frozenset[str] = field(default_factory=frozenset[str])
    question_id: str | None = None
    """The question that a message has answered."""


def require_agent(api: Api, name: str) -> None:
    """Refuse an agent that does not exist.

    Raises:
        Refusal: There is none with this name.
    """
    agents = api.sessions.client.agents
    if name not in agents:
        raise Refusal(404, "not-found", "Not found", str(UnknownName("agent", name, agents)))


@dataclass(frozen=True)
class Threads:
    """The threads of one caller with one agent."""

    api: Api
    caller: Caller
    agent: str

    def require_agent(self) -> None:
        """Refuse an agent that does not exist.

        Raises:
            Refusal: There is none with this name.
        """
        require_agent(self.api, self.agent)

    @property
    def logs(self) -> Logs:
        """The envelopes of streams.

        Raises:
            Refusal: No gateway is configured.
        """
        if self.api.logs is None:
            raise no_gateway()
        return self.api.logs

    async def find(self, thread_id: str) -> tuple[UUID, SessionRow | None]:
        """The session of a thread: the one with this id, or else the caller's own for this name."""
        if len(thread_id) > MAX_NAME or not thread_id:
            raise InvalidInput(f"the id of a thread has 1 to {MAX_NAME} characters; send another one")
        store, scope = self.api.sessions.store, self.caller.scope
        try:
            named = UUID(thread_id)
        except ValueError:
            named = None
        if named is not None and (row := await store.session(scope, named)):
            return named, row
        own = uuid5(_NAMESPACE, json_text([self.caller.tenant_id, self.caller.user_id, thread_id]))
        return own, await store.session(scope, own)

    async def send(self, thread_id: str, sent: ThreadMessageSent, given_key: str | None) -> RunToFollow:
        """Add a message to a thread, which is created if it does not exist.

        Args:
            thread_id: The client's name of the thread.
            sent: The message.
            given_key: The `Idempotency-Key`; by default the message's id names it in its thread.
        """
        if len(sent.id) > MAX_NAME:
            raise InvalidInput(f"the id of a message has at most {MAX_NAME} characters; send another one")
        session_id, row = await self.find(thread_id)
        key = RequestKey(self.caller, given_key or json_text(["thread", str(session_id), sent.id]))
        sessions, caller = self.api.sessions_for(self.caller), self.caller
        if row is None:
            metadata = frozen_map({"agent": self.agent})
            new = NewSession(
                session_id, caller.tenant_id, caller.user_id, title=sent.title, metadata=metadata
            )
            row = await sessions.create(caller.scope, new, None, caller.in_context(caller.user_id))
        head, _ = await self.logs.index.place(session_id, session_id)
        user_id = caller.scope.user_id or row.user_id
        metadata = {CLIENT_MESSAGE_ID: sent.id, **sent.notes}
        metadata |= {CLIENT_RUN_ID: sent.run_id} if sent.run_id else {}
        message = UserMessage(
            sent.text,
            user_id,
            on_busy=sent.on_busy,
            agent=self.agent,
            metadata=metadata,
            key=str(key.id("message")),
            caller=caller.in_context(user_id),
            model=usable_model(caller, sent.model),
            by=caller.actor,
            attachments=sent.attachments,
            output=sent.output,
            history=sent.history,
        )
        if sent.notes:
            begun = str(sessions.new_execution_id(caller.scope, message))
            message = replace(message, metadata={**metadata, BEGUN_EXECUTION: begun})
        result = await sessions.send(caller.scope, session_id, message)
        stored = result.message
        if stored.content != sent.text or any(
            stored.metadata.get(each) != sent.notes[each] for each in sent.notes
        ):
            raise key_conflict()
        self.api.metrics.count_message(result.route)
        execution_id = result.execution_id
        if result.route in {Route.STEER, Route.ANSWER}:
            question_id = stored.metadata.get("request_id") if result.route is Route.ANSWER else None
            return RunToFollow(session_id, execution_id, FromSeq(head), question_id=question_id)
        is_repeated = stored.metadata.get(CLIENT_RUN_ID) != sent.run_id
        if is_repeated and await self._has_failed(session_id, execution_id):
            # The client tries again in a new run: the execution goes on where it failed.
            ref = ExecutionRef(execution_id, caller.tenant_id, session_id)
            execution_id = (await sessions.retry(ref)).id
        return RunToFollow(session_id, execution_id)

    async def created_at(self, execution_id: UUID) -> float:
        """When an execution was accepted, in seconds since 1970; 0 if it was deleted."""
        ref = ExecutionRef(execution_id, self.caller.tenant_id)
        row = await self.api.sessions.client.store.execution(ref)
        return row.created_at.timestamp() if row else 0

    async def _has_failed(self, session_id: UUID, execution_id: UUID) -> bool:
        ref = ExecutionRef(execution_id, self.caller.tenant_id, session_id)
        row = await self.api.sessions.client.store.execution(ref)
        return row is not None and row.status is ExecutionStatus.FAILED

    async def filter_new_ids(self, thread_id: str, ids: Sequence[str]) -> Sequence[str]:
        """Those of a client's messages that its thread does not have."""
        session_id, row = await self.find(thread_id)
        if row is None:
            return ids
        page = await self.api.sessions.store.messages(self.caller.scope, session_id, limit=200)
        known = {message.metadata.get(CLIENT_MESSAGE_ID) for message in page.rows}
        return [id_ for id_ in ids if id_ not in known]

    # Answers.

    async def regenerate(self, thread_id: str, execution_id: UUID | None, given_key: str) -> RunToFollow:
        """Answer the message again that began an execution, by default the last one, in a fork of it.

        Raises:
            Refusal: There is no such thread or execution.
            SessionBusy: An execution of the thread is running.
        """
        session_id, row = await self.find(thread_id)
        if row is None:
            raise not_found("thread", thread_id)
        sessions = self.api.sessions_for(self.caller)
        page = await sessions.store.executions_of(self.caller.scope, ExecutionFilter(session_id), limit=200)
        roots = [row.ref for row in page.rows if row.parent_execution_id is None]
        ref = next((ref for ref in roots if execution_id in {None, ref.execution_id}), None)
        if ref is None:
            raise not_found("message", execution_id)
        key = RequestKey(self.caller, f"{given_key}/{ref.execution_id}")
        forked = await sessions.fork(ref, 0, None, str(key.id("fork")))
        return RunToFollow(session_id, forked.id)

    async def answer(
        self,
        thread_id: str,
        answers: Sequence[GivenAnswer],
        given_key: str,
        *,
        skips_resolved: bool = False,
    ) -> RunToFollow:
        """Answer the open requests of a thread: all of them, or the answers are refused.

        Repeating the call changes nothing.

        Args:
            thread_id: The client's name of the thread.
            answers: The answers.
            given_key: The name of this request.
            skips_resolved: Whether answers that a request has already are left out: some clients send them
                again.

        Raises:
            Refusal: A request is missing, unknown, or already has another answer.
        """
        session_id, row = await self.find(thread_id)
        if row is None:
            raise not_found("thread", thread_id)
        root, requests = await self._requests(session_id, [answer.request_id for answer in answers])
        if skips_resolved:
            answers = [
                each for each in answers if requests[each.request_id].state is RequestState.OPEN
            ] or answers
        given = {answer.request_id: answer for answer in answers}
        if contradicted := next((each for each in answers if given[each.request_id] != each), None):
            raise InvalidInput(f"the request {contradicted.request_id} has two answers; send one of them")
        missing = [
            str(id_)
            for id_, request in requests.items()
            if request.state is RequestState.OPEN and id_ not in given and isinstance(request.kind, CallNeed)
        ]
        # Answers that are sent again are about resolved requests, and the agent may have asked more since.
        if missing and any(requests[id_].state is RequestState.OPEN for id_ in given):
            raise Refusal(
                409,
                "requests-open",
                "More requests are open",
                f"Answer all open requests together; these are missing: {', '.join(missing)}",
            )
        for answer in answers:
            self._check(requests[answer.request_id], answer)
        is_cancelled = False
        for answer in answers:
            request = requests[answer.request_id]
            is_resolved = request.state is not RequestState.OPEN
            if skips_resolved and is_resolved and not _contradicts(answer, request):
                continue
            key = str(RequestKey(self.caller, f"{given_key}/{request.id}").id("decision"))
            if answer.is_cancelled and request.kind is not CallNeed.APPROVAL:
                is_cancelled = True
            else:
                await self._resolve(request, answer, key)
        if is_cancelled:
            await self._cancel(root, given_key)
        ids = frozenset(str(id_) for id_ in given)
        return RunToFollow(session_id, root.ref.execution_id, FromAnswers(ids), ids)

    async def _requests(
        self, session_id: UUID, ids: Sequence[UUID]
    ) -> tuple[ExecutionRow, Mapping[UUID, RequestRow]]:
        """The execution that asks, and all its requests that the caller sees."""
        sessions, scope = self.api.sessions, self.caller.scope
        page = await sessions.store.executions_of(scope, ExecutionFilter(session_id), limit=200)
        roots = [row for row in page.rows if row.parent_execution_id is None]
        unknown = str(ids[0])
        for root in roots[:MAX_ROOTS]:
            found = await sessions.client.store.requests_within(root.ref)
            requests = {each.id: each for each in found if self.caller.sees_request(each)}
            absent = [str(id_) for id_ in ids if id_ not in requests]
            if not absent:
                return root, requests
            unknown = absent[0] if len(absent) < len(ids) else unknown
        raise not_found("request", unknown)

    def _check(self, request: RequestRow, answer: GivenAnswer) -> None:
        """Refuse an answer of the wrong kind before any is stored."""
        if answer.is_cancelled:
            return
        if request.kind is RequestKind.BUDGET:
            budget_decider(self.caller.actor, now())
            _new_total(request, answer)
        if request.kind is CallNeed.APPROVAL and answer.approved is None:
            raise InvalidInput(f"the decision about the call {request.id} needs `approved`: true or false")
        if request.kind is CallNeed.INPUT and answer.value is None:
            raise InvalidInput(f"the question {request.id} needs an answer as its payload")

    async def _resolve(self, request: RequestRow, answer: GivenAnswer, key: str) -> None:
        execution = Execution(self.api.client_for(self.caller), request.ref)
        if request.kind is RequestKind.BUDGET:
            total, scope = _new_total(request, answer), request.request.get("scope")
            await execution.raise_budget(**total, scope=scope, key=key, by=self.caller.actor)
            return
        if request.kind is CallNeed.INPUT:
            value = answer.value
            text, data = (value, None) if isinstance(value, str) else ("", value)
            if isinstance(value, str) and request.request.get("schema"):
                text, data = value, None
            await execution.submit_input(
                text, data=data, request_id=request.id, key=key, by=self.caller.actor
            )
            return
        digest, by = request.args_digest, self.caller.actor
        if answer.is_cancelled or not answer.approved:
            reason = answer.reason or ("cancelled" if answer.is_cancelled else None)
            await execution.deny(request.id, args_digest=digest, key=key, reason=reason, by=by)
        elif answer.args is not None:
            await execution.edit(answer.args, request.id, args_digest=digest, key=key, by=by)
        else:
            await execution.approve(request.id, args_digest=digest, key=key, by=by)

    async def _cancel(self, root: ExecutionRow, given_key: str) -> None:
        """Cancel an execution whose question its user does not answer."""
        if not self.caller.scope.covers(root.user_id):
            raise forbidden("Only the user of an execution may cancel it here; answer the question")
        sent_by = command_decider(self.caller.actor, CANCEL, root.user_id, now())
        key = str(RequestKey(self.caller, given_key).id("cancel"))
        await self.api.sessions_for(self.caller).cancel(root.ref, key, is_pending=False, sent_by=sent_by)


def _contradicts(answer: GivenAnswer, request: RequestRow) -> bool:
    """Whether a resolved request has another answer."""
    resolution = request.resolution
    if resolution is None:
        return False
    if request.kind is CallNeed.APPROVAL:
        return answer.approved is resolution.is_denied
    texts = (answer.value, resolution.value)
    return all(isinstance(each, str) for each in texts) and texts[0] != texts[1]


def _new_total(request: RequestRow, answer: GivenAnswer) -> dict[str, Any]:
    """The new total of the budget for which an execution waits.

    Raises:
        InvalidInput: It is no larger total of that budget.
    """
    total = NewTotalSent.model_validate(answer.value).model_dump(exclude_none=True, exclude={"scope"})
    unit, limit = str(request.request["unit"]), request.request["limit"]
    if list(total) != [unit] or total[unit] <= limit:
        raise InvalidInput(f"the budget is {limit} {unit}; pass a larger total as {{{unit!r}: ...}}")
    return total
