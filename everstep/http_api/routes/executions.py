"""Routes about executions."""

from functools import partial
from typing import Annotated, Literal, TypeVar
from uuid import UUID

from fastapi import Path, Query

from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict
from everstep.agent_domain.capabilities.rights import ALL_SESSIONS, command_decider
from everstep.agent_domain.explanation.because import recorded_end
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow, RequestState
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.values import EMPTY
from everstep.client.because import ExplainedPage
from everstep.client.errors import Taken
from everstep.client.execution import Execution as Handle, now
from everstep.http_api.auth import CallerDep, acting_scope, acting_user, usable_model
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.execution_access import load_for_answer, load_for_command, load_for_decision
from everstep.http_api.idempotency import KeyDep, key_conflict
from everstep.http_api.problems import not_found
from everstep.http_api.routes.router import ApiDep, ExecutionId, load_execution, load_files, router
from everstep.http_api.schemas.execution_responses import (
    ExecutionCancelled,
    ExecutionResponse,
    ExecutionSteered,
    Request,
    Snapshot,
)
from everstep.http_api.schemas.request_bodies import (
    AnswerSent,
    ForkSent,
    NewExecutionSent,
    SteerSent,
    require_text,
)
from everstep.http_api.schemas.responses import PageResponse, page_response
from everstep.http_api.schemas.step_responses import BecauseResponse, Decision, Step
from everstep.http_api.schemas.text import Cursor, Instant, Limit, SearchWords, Text
from everstep.telemetry.tracing import name_execution

routes = router("executions")

ResponseT = TypeVar("ResponseT", bound=ExecutionResponse)

After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Only items after this step.")]


@routes.post("/agent/executions", status_code=201)
async def start_execution(
    body: NewExecutionSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ExecutionResponse:
    """Start an execution without a session."""
    require_text(body.content, attachments=body.attachments)
    user_id, scope = acting_user(caller, body.user_id), acting_scope(caller, body.user_id)
    files = await load_files(api, scope, body.attachments)
    try:
        execution = await api.client_for(caller).start(
            body.agent or api.sessions.default_agent,
            Message.user(body.content, attachments=files),
            execution_id=key.id("execution"),
            user_id=user_id,
            metadata=body.metadata,
            request=body.digest,
            debug=body.debug,
            broadcast=body.broadcast and BroadcastConfig.preset(body.broadcast),
            model=usable_model(caller, body.model),
            output=body.output,
            budgets=body.budget.budgets if body.budget else (),
        )
    except Taken:
        raise key_conflict() from None
    return ExecutionResponse.of(await execution.get(), in_full=caller.sees_all)


@routes.get("/agent/executions")
async def list_executions(  # noqa: PLR0913 -- FastAPI calls it by keyword
    api: ApiDep,
    caller: CallerDep,
    session_id: UUID | None = None,
    parent_execution_id: UUID | None = None,
    status: ExecutionStatus | None = None,
    agent: Text | None = None,
    user_id: Text | None = None,
    since: Annotated[Instant | None, Query(description="Only those accepted then or later.")] = None,
    q: SearchWords | None = None,
    because: Annotated[bool, Query(description="Whether to include why each execution ended.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageResponse[ExecutionResponse]:
    """List executions, newest first."""
    query = TextQuery.parse_optional(q)
    wanted = ExecutionFilter(session_id, parent_execution_id, status, agent, user_id, since, query, because)
    page = await api.sessions.store.executions_of(caller.scope, wanted, cursor=cursor, limit=limit)

    def response(row: ExecutionRow) -> ExecutionResponse:
        shown = ExecutionResponse.of(row, in_full=caller.sees_all)
        return shown.with_because(recorded_end(row, in_full=caller.sees_all)) if because else shown

    return page_response(page, response)


@routes.get("/agent/executions/{execution_id}")
async def read_execution(execution_id: ExecutionId, api: ApiDep, caller: CallerDep) -> ExecutionResponse:
    """Read the status of an execution."""
    row, execution = await load_execution(api, caller, execution_id)
    response = ExecutionResponse.of(row, in_full=caller.sees_all)
    explained = response.with_because(recorded_end(row, in_full=caller.sees_all))
    return explained.with_budgets(await execution.budgets())


@routes.get("/agent/executions/{execution_id}/requests")
async def list_requests(
    execution_id: ExecutionId,
    api: ApiDep,
    caller: CallerDep,
    status: Annotated[
        Literal["open", "resolved", "all"], Query(description="Which requests: those that wait, or others.")
    ] = "open",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageResponse[Request]:
    """List the questions and approvals of an execution, oldest first: by default those that are open."""
    ref, access = ExecutionRef(execution_id, caller.tenant_id), caller.request_access
    row = await api.sessions.client.store.execution(ref)
    state = None if status == "all" else RequestState(status)
    page = await api.sessions.store.requests_of(
        ref, caller.scope, access, state=state, cursor=cursor, limit=limit
    )
    # An approver of some calls, such as a role, does not learn of executions without such a call.
    may_see = row is not None and (caller.scope.covers(row.user_id) or bool(access.kinds or page.rows))
    if not may_see:
        raise not_found("execution", execution_id)
    if row is not None:
        name_execution(row.ref)
    return page_response(page, partial(Request.of, actor=caller.actor))


@routes.get("/agent/executions/{execution_id}/steps")
async def list_steps(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, after: After = 0, limit: Limit = 50
) -> PageResponse[Step]:
    """List the steps of an execution. `next_cursor` is the `after` of the next page."""
    page = await _explained_steps(api, caller, execution_id, after, limit)
    of = partial(Step.of, in_full=caller.sees_all)
    return PageResponse(items=list(map(of, page.steps.rows, page.sentences)), next_cursor=page.steps.cursor)


@routes.get("/agent/executions/{execution_id}/trace")
async def read_trace(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, after: After = 0, limit: Limit = 50
) -> PageResponse[Decision]:
    """List the decision after each step. `next_cursor` is the `after` of the next page."""
    page = await _explained_steps(api, caller, execution_id, after, limit)
    of = partial(Decision.of, in_full=caller.sees_all)
    return PageResponse(items=list(map(of, page.steps.rows, page.sentences)), next_cursor=page.steps.cursor)


@routes.get("/agent/executions/{execution_id}/because")
async def read_because(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, after: After = 0, limit: Limit = 50
) -> BecauseResponse:
    """Explain an execution: why it ended, or what it waits for, and why each step was followed by another.

    Each is one sentence with the numbers that decided. `next_cursor` is the `after` of the next page.
    """
    row, execution = await load_execution(api, caller, execution_id)
    because, cursor = await execution.because_page(row, after, limit, in_full=caller.sees_all)
    return BecauseResponse.of(because, cursor)


async def _explained_steps(
    api: Api, caller: Caller, execution_id: UUID, after: int, limit: int
) -> ExplainedPage:
    row, execution = await load_execution(api, caller, execution_id)
    return await execution.explained_steps(row, after, limit, in_full=caller.sees_all)


@routes.get("/agent/executions/{execution_id}/snapshots")
async def list_snapshots(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[Snapshot]:
    """List the snapshots of an execution, newest first."""
    row, _ = await load_execution(api, caller, execution_id)
    page = await api.sessions.store.snapshots(row.ref, cursor=cursor, limit=limit)
    return page_response(page, partial(Snapshot.of, in_full=caller.sees_all))


@routes.post("/agent/executions/{execution_id}/input")
async def answer_question(
    execution_id: ExecutionId, body: AnswerSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> Request:
    """Answer a question of an execution, by default the oldest open one.

    A question of another user needs the scope `answer`.
    """
    if body.request_id is None:
        execution = await load_for_answer(api, caller, execution_id)
    else:
        execution = await load_for_decision(api, caller, execution_id, body.request_id, CallNeed.INPUT)
    request = await execution.submit_input(
        body.text, data=body.data, request_id=body.request_id, key=str(key.id("input")), by=caller.actor
    )
    return await _stored_request(execution, request, caller)


@routes.post("/agent/executions/{execution_id}/approvals/{request_id}")
async def decide(
    execution_id: ExecutionId,
    request_id: Annotated[UUID, Path(description="The request's id.")],
    body: ApprovalDecision,
    api: ApiDep,
    caller: CallerDep,
    key: KeyDep,
) -> Request:
    """Approve a call, approve it with other arguments, or deny it.

    `approver` of the request says who may: by default callers with the scope `approve`. Other arguments need
    the scope `approve:edit` as well.
    """
    execution = await load_for_decision(api, caller, execution_id, request_id, CallNeed.APPROVAL)
    digest, command_key, by = body.args_digest, str(key.id("decision")), caller.actor
    match body.decision:
        case Verdict.APPROVE:
            decided = execution.approve(
                request_id, args_digest=digest, key=command_key, remember=body.remember, by=by
            )
        case Verdict.DENY:
            decided = execution.deny(
                request_id, args_digest=digest, key=command_key, reason=body.reason, by=by
            )
        case Verdict.EDIT:
            decided = execution.edit(body.args or {}, request_id, args_digest=digest, key=command_key, by=by)
    return await _stored_request(execution, await decided, caller)


@routes.post("/agent/executions/{execution_id}/steer")
async def steer(
    execution_id: ExecutionId, body: SteerSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ExecutionSteered:
    """Send a message that the agent reads before its next step; if there is none, its successor reads it.

    The execution of another user needs the scope `steer`.
    """
    row, execution, sent_by = await load_for_command(api, caller, execution_id, Grant.STEER)
    content, sessions = require_text(body.content), api.sessions_for(caller)
    files = await load_files(api, caller.scope, body.attachments)
    steering = await sessions.steer(row.ref, content, str(key.id("steer")), sent_by, files)
    response = ExecutionSteered.from_steering(await execution.get(), steering)
    return _without_conversation(response, row, caller)


@routes.post("/agent/executions/{execution_id}/pause")
async def pause(execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep) -> ExecutionResponse:
    """Pause an execution once its running calls are done."""
    row, execution = await load_execution(api, caller, execution_id)
    sent_by = command_decider(caller.actor, ALL_SESSIONS, row.user_id, now())
    await execution.pause(key=str(key.id("pause")), sent_by=sent_by)
    return ExecutionResponse.of(await execution.get(), in_full=caller.sees_all)


@routes.post("/agent/executions/{execution_id}/resume")
async def resume(execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep) -> ExecutionResponse:
    """Resume a paused execution."""
    _, execution = await load_execution(api, caller, execution_id)
    await execution.resume(key=str(key.id("resume")))
    return ExecutionResponse.of(await execution.get(), in_full=caller.sees_all)


@routes.post("/agent/executions/{execution_id}/cancel")
async def cancel(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ExecutionCancelled:
    """Stop an execution now and abandon its current step. Cancelling it again changes nothing.

    While `is_cancelling` is true the execution has not ended yet: read it again, or follow its stream.

    The execution of another user needs the scope `cancel`.
    """
    row, execution, sent_by = await load_for_command(api, caller, execution_id, Grant.CANCEL)
    is_pending = row.status is ExecutionStatus.PENDING
    is_stored = await api.sessions_for(caller).cancel(
        row.ref, str(key.id("cancel")), is_pending=is_pending, sent_by=sent_by
    )
    latest = await execution.get() if is_stored else row
    return _without_conversation(ExecutionCancelled.from_row(latest, in_full=caller.sees_all), row, caller)


@routes.post("/agent/executions/{execution_id}/fork", status_code=201)
async def fork(
    execution_id: ExecutionId, body: ForkSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ExecutionResponse:
    """Start an execution that copies the conversation up to a step, without running tools again."""
    row, _ = await load_execution(api, caller, execution_id)
    if body.content is not None:
        require_text(body.content)
    forked = await api.sessions_for(caller).fork(row.ref, body.step, body.content, str(key.id("fork")))
    return ExecutionResponse.of(await forked.get(), in_full=caller.sees_all)


@routes.post("/agent/executions/{execution_id}/retry", status_code=201)
async def retry(execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep) -> ExecutionResponse:
    """Continue a failed execution from its last good step, in a new execution with its whole conversation.

    What its tools did is not done again. Retrying it again returns the same new execution.
    """
    del key
    row, _ = await load_execution(api, caller, execution_id)
    retried = await api.sessions_for(caller).retry(row.ref)
    return ExecutionResponse.of(await retried.get(), in_full=caller.sees_all)


async def _stored_request(execution: Handle, request: RequestRow, caller: Caller) -> Request:
    stored = await execution.client.store.request(execution.ref, request.id)
    return Request.of(stored or request, actor=caller.actor)


def _without_conversation(response: ResponseT, row: ExecutionRow, caller: Caller) -> ResponseT:
    """Leave out the conversation for callers who may steer or cancel, and not read it."""
    if caller.scope.covers(row.user_id):
        return response
    return response.model_copy(update={"output": None, "error_message": None, "metadata": EMPTY})
