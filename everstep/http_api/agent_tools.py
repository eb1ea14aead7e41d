"""Agents as four tools: start an execution, read it, answer its requests, wait for its result.

Every call is short: hosts give up on a call after a minute, and executions take hours. An execution goes on
whether or not anyone waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.storage.sessions import Route
from everstep.client.execution import Execution
from everstep.client.sessions import SendResult
from everstep.client.user_messages import UserMessage
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.execution_access import load_for_command
from everstep.http_api.idempotency import RequestKey, key_conflict, within_patience
from everstep.http_api.problems import Refusal, forbidden, not_found, refusal_of
from everstep.http_api.routes.router import load_execution, load_session
from everstep.http_api.schemas.agent_tool_schemas import (
    AgentRun,
    AgentRunRequest,
    AnswerArguments,
    ResultArguments,
    StartArguments,
    StatusArguments,
)
from everstep.http_api.schemas.execution_responses import Request
from everstep.http_api.threads import require_agent

OnWait = Callable[[float, str], Awaitable[None]]
"""Receives the seconds of a wait so far, and how the execution is."""


@dataclass(frozen=True)
class AgentTools:
    """The tools of one caller."""

    api: Api
    caller: Caller

    async def start(self, arguments: StartArguments, given_key: str | None = None) -> AgentRun:
        """Start an execution of an agent with a message, in a new session or in the given one.

        Args:
            arguments: The arguments of the tool.
            given_key: The `Idempotency-Key` of the request; the one among the arguments comes first.
        """
        self._require_write()
        require_agent(self.api, arguments.agent)
        key = RequestKey(self.caller, arguments.idempotency_key or given_key or str(uuid4()))
        try:
            sent = await within_patience(self._send(arguments, key))
        except Exception as error:
            raise _repeatable(refusal_of(error), key) from error
        if sent.message.content != arguments.message:
            raise key_conflict()
        self.api.metrics.count_message(sent.route)
        row = await self._execution(ExecutionRef(sent.execution_id, self.caller.tenant_id)).get()
        if sent.route is not Route.ANSWER and row.agent != arguments.agent:
            raise key_conflict()
        return await self._describe(row)

    async def _send(self, arguments: StartArguments, key: RequestKey) -> SendResult:
        caller, sessions = self.caller, self.api.sessions_for(self.caller)
        user_id, session_id = caller.user_id, arguments.session_id
        if session_id is not None:
            # A service acts for the owner of the session.
            row = await load_session(self.api, caller, session_id)
            user_id = caller.scope.user_id or row.user_id
        message = UserMessage(
            arguments.message,
            user_id,
            agent=arguments.agent,
            key=str(key.id("message")),
            caller=caller.in_context(user_id),
            by=caller.actor,
        )
        if session_id is not None:
            return await sessions.send(caller.scope, session_id, message)
        return await sessions.begin(Scope(caller.tenant_id, user_id), message)

    async def status(self, arguments: StatusArguments) -> AgentRun:
        """Read an execution."""
        row, _ = await load_execution(self.api, self.caller, arguments.execution_id)
        return await within_patience(self._describe(row))

    async def result(self, arguments: ResultArguments, on_wait: OnWait) -> AgentRun:
        """Wait until an execution has ended, or until the caller can answer a request of it.

        Args:
            arguments: The arguments of the tool.
            on_wait: Is called while it waits.
        """
        began, looks = monotonic(), 0
        row, execution = await load_execution(self.api, self.caller, arguments.execution_id)
        self.api.waiting_calls.count += 1
        try:
            while not row.status.is_terminal and not await self._is_answerable(execution):
                waited = monotonic() - began
                if waited >= arguments.wait_seconds:
                    break
                await on_wait(waited, f"{row.status}, after {row.step_count} steps")
                await asyncio.sleep(
                    min(self.api.waiting_calls.pause_before(looks), arguments.wait_seconds - waited)
                )
                looks += 1
                row = await execution.get()
        finally:
            self.api.waiting_calls.count -= 1
        return await within_patience(self._describe(row))

    async def _is_answerable(self, execution: Execution) -> bool:
        requests = await self._open_requests(execution)
        return any(request.may_answer for request in requests)

    async def answer(self, arguments: AnswerArguments) -> AgentRun:
        """Answer a question, decide about a call, raise an exhausted budget, or cancel the execution."""
        self._require_write()
        if arguments.cancel:
            if arguments.has_answer:
                raise InvalidInput(
                    "`cancel` stops the run, and the call has an answer as well; pass one of them"
                )
            return await within_patience(self._cancel(arguments))
        return await within_patience(self._answer(arguments))

    async def _cancel(self, arguments: AnswerArguments) -> AgentRun:
        row, execution, sent_by = await load_for_command(
            self.api, self.caller, arguments.execution_id, Grant.CANCEL
        )
        key = str(RequestKey(self.caller, f"cancel/{row.ref.execution_id}").id("cancel"))
        await self.api.sessions_for(self.caller).cancel(row.ref, key, sent_by=sent_by)
        return await self._describe(await execution.get())

    async def _answer(self, arguments: AnswerArguments) -> AgentRun:
        execution = self._execution(ExecutionRef(arguments.execution_id, self.caller.tenant_id))
        row = await execution.client.store.execution(execution.ref)
        known: Sequence[RequestRow] = ()
        if row is not None:
            known = await execution.client.store.requests_within(row.ref)
        seen = [request for request in known if self.caller.sees_request(request)]
        if row is None or not (self.caller.scope.covers(row.user_id) or seen):
            raise not_found("execution", arguments.execution_id)
        request = self._choose_request(seen, arguments)
        await self._resolve(request, arguments)
        return await self._describe(await execution.get())

    def _choose_request(self, seen: Sequence[RequestRow], arguments: AnswerArguments) -> RequestRow:
        if arguments.request_id is not None:
            named = next((each for each in seen if each.id == arguments.request_id), None)
            if named is None:
                raise not_found("request", arguments.request_id)
            return named
        waiting = [each for each in seen if each.state is RequestState.OPEN]
        if not waiting:
            detail = "The execution waits for no answer; call `status` to see how it is"
            raise Refusal(409, "not-now", "The execution does not accept this now", detail)
        if len(waiting) > 1:
            ids = ", ".join(str(each.id) for each in waiting)
            raise InvalidInput(f"several requests are open; pass the request_id of one of them: {ids}")
        return waiting[0]

    async def _resolve(self, request: RequestRow, arguments: AnswerArguments) -> None:
        execution, by = self._execution(request.ref), self.caller.actor
        # The same answer again is the same command.
        content = arguments.model_dump_json(exclude={"execution_id", "request_id"})
        key = str(RequestKey(self.caller, f"answer/{request.id}/{content}").id("decision"))
        match request.kind:
            case CallNeed.APPROVAL:
                await self._decide(execution, request, arguments, key)
            case RequestKind.BUDGET:
                if arguments.budget is None:
                    raise InvalidInput(
                        f"the request {request.id} is an exhausted budget; pass its new total as `budget`"
                    )
                await execution.raise_budget(**arguments.budget.model_dump(exclude_none=True), key=key, by=by)
            case _:
                if arguments.text is None and arguments.data is None:
                    raise InvalidInput(f"the request {request.id} is a question; pass `text` or `data`")
                await execution.submit_input(
                    arguments.text or "", data=arguments.data, request_id=request.id, key=key, by=by
                )

    async def _decide(
        self, execution: Execution, request: RequestRow, arguments: AnswerArguments, key: str
    ) -> None:
        digest, by = arguments.args_digest or request.args_digest, self.caller.actor
        match arguments.decision:
            case "approve":
                await execution.approve(request.id, args_digest=digest, key=key, by=by)
            case "deny":
                await execution.deny(request.id, args_digest=digest, key=key, reason=arguments.reason, by=by)
            case "edit":
                await execution.edit(arguments.args or {}, request.id, args_digest=digest, key=key, by=by)
            case None:
                raise InvalidInput(
                    f"the request {request.id} is an approval; pass `decision`: approve, deny or edit"
                )

    def _execution(self, ref: ExecutionRef) -> Execution:
        return Execution(self.api.client_for(self.caller), ref)

    async def _open_requests(self, execution: Execution) -> Sequence[AgentRunRequest]:
        rows = await execution.client.store.requests_within(execution.ref)
        seen = [row for row in rows if row.state is RequestState.OPEN and self.caller.sees_request(row)]
        return [AgentRunRequest.from_request(row, Request.of(row, actor=self.caller.actor)) for row in seen]

    async def _describe(self, row: ExecutionRow) -> AgentRun:
        execution, caller = self._execution(row.ref), self.caller
        has_conversation = caller.scope.covers(row.user_id)
        requests = () if row.status.is_terminal else await self._open_requests(execution)
        because = await execution.sentence(row, in_full=caller.sees_all) if has_conversation else None
        return AgentRun.from_row(
            row,
            requests,
            because,
            in_full=caller.sees_all,
            has_conversation=has_conversation,
            is_cancelling=not row.status.is_terminal and await self._is_cancelling(row.ref),
        )

    async def _is_cancelling(self, ref: ExecutionRef) -> bool:
        sent = await self.api.sessions.client.store.sent_commands(ref)
        return any(command.kind is CommandKind.CANCEL for command in sent)

    def _require_write(self) -> None:
        if not self.caller.may_write:
            raise forbidden("This token or key is read-only; use another one")


def _repeatable(refusal: Refusal, key: RequestKey) -> Refusal:
    """An outage during a start: what it began is found again under its key only."""
    if refusal.status < 500:  # noqa: PLR2004 -- the errors of servers
        return refusal
    detail = (
        f"{refusal.detail}. Repeat the call with the idempotency_key {key.key!r}: it starts nothing twice"
    )
    return Refusal(refusal.status, refusal.slug, refusal.title, detail, headers=refusal.headers)
