"""Routes about executions."""

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query

from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.client.errors import Taken
from everstep.client.execution import Execution as Handle
from everstep.http_api.auth import CallerDep, acting_user, usable_model
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import KeyDep, key_conflict
from everstep.http_api.problems import not_found
from everstep.http_api.routes.router import ApiDep, ExecutionId, load_execution, router
from everstep.http_api.schemas.execution_responses import (
    Decision,
    ExecutionResponse,
    ExecutionSteered,
    Request,
    Snapshot,
    Step,
)
from everstep.http_api.schemas.request_bodies import (
    AnswerSent,
    ForkSent,
    NewExecutionSent,
    SteerSent,
    require_text,
)
from everstep.http_api.schemas.responses import PageResponse, page_response
from everstep.http_api.schemas.text import Cursor, Limit

routes = router("executions")

After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Only items after this step.")]


@routes.post("/agent/executions", status_code=201)
async def start_execution(
    body: NewExecutionSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ExecutionResponse:
    """Start an execution without a session."""
    try:
        execution = await api.client_for(caller).start(
            body.agent or api.sessions.default_agent,
            require_text(body.content),
            execution_id=key.id("execution"),
            user_id=acting_user(caller, body.user_id),
            metadata=body.metadata,
            request=body.digest,
            debug=body.debug,
            broadcast=body.broadcast and BroadcastConfig.preset(body.broadcast),
            model=usable_model(caller, body.model),
        )
    except Taken:
        raise key_conflict() from None
    return ExecutionResponse.of(await execution.get(), in_full=caller.sees_all)


@routes.get("/agent/executions")
async def list_executions(
    api: ApiDep,
    caller: CallerDep,
    session_id: UUID | None = None,
    parent_execution_id: UUID | None = None,
    status: ExecutionStatus | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageResponse[ExecutionResponse]:
    """List executions, newest first."""
    wanted = ExecutionFilter(session_id, parent_execution_id, status)
    page = await api.sessions.store.executions_of(caller.scope, wanted, cursor=cursor, limit=limit)
    return page_response(page, partial(ExecutionResponse.of, in_full=caller.sees_all))


@routes.get("/agent/executions/{execution_id}")
async def read_execution(execution_id: ExecutionId, api: ApiDep, caller: CallerDep) -> ExecutionResponse:
    """Read the status of an execution."""
    row, _ = await load_execution(api, caller, execution_id)
    return ExecutionResponse.of(row, in_full=caller.sees_all)


@routes.get("/agent/executions/{execution_id}/requests")
async def list_requests(execution_id: ExecutionId, api: ApiDep, caller: CallerDep) -> PageResponse[Request]:
    """List the open questions and approvals of an execution, oldest first."""
    _, execution = await load_execution(api, caller, execution_id)
    return page_response(Page(tuple(await execution.requests())), Request.of)


@routes.get("/agent/executions/{execution_id}/steps")
async def list_steps(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, after: After = 0, limit: Limit = 50
) -> PageResponse[Step]:
    """List the steps of an execution. `next_cursor` is the `after` of the next page."""
    return page_response(
        await _steps(api, caller, execution_id, after, limit), partial(Step.of, in_full=caller.sees_all)
    )


@routes.get("/agent/executions/{execution_id}/trace")
async def read_trace(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep, after: After = 0, limit: Limit = 50
) -> PageResponse[Decision]:
    """List the decision after each step. `next_cursor` is the `after` of the next page."""
    return page_response(
        await _steps(api, caller, execution_id, after, limit), partial(Decision.of, in_full=caller.sees_all)
    )


async def _steps(api: Api, caller: Caller, execution_id: UUID, after: int, limit: int) -> Page[StepRow]:
    row, _ = await load_execution(api, caller, execution_id)
    return await api.sessions.client.store.steps_after(row.ref, after, limit)


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
    """Answer a question of an execution, by default the oldest open one."""
    _, execution = await load_execution(api, caller, execution_id)
    await _require_request(execution, body.request_id, CallNeed.INPUT)
    request = await execution.submit_input(
        body.text, data=body.data, request_id=body.request_id, key=str(key.id("input"))
    )
    return Request.of(await execution.client.store.request(execution.ref, request.id) or request)


@routes.post("/agent/executions/{execution_id}/approvals/{request_id}")
async def decide(
    execution_id: ExecutionId,
    request_id: Annotated[UUID, Path(description="The request's id.")],
    body: ApprovalDecision,
    api: ApiDep,
    caller: CallerDep,
    key: KeyDep,
) -> Request:
    """Approve a call, approve it with other arguments, or deny it."""
    _, execution = await load_execution(api, caller, execution_id)
    await _require_request(execution, request_id, CallNeed.APPROVAL)
    bound = {"args_digest": body.args_digest, "key": str(key.id("decision"))}
    match body.decision:
        case Verdict.APPROVE:
            decided = execution.approve(request_id, remember=body.remember, **bound)
        case Verdict.DENY:
            decided = execution.deny(request_id, reason=body.reason, **bound)
        case Verdict.EDIT:
            decided = execution.edit(body.args or {}, request_id, **bound)
    request = await decided
    return Request.of(await execution.client.store.request(execution.ref, request.id) or request)


@routes.post("/agent/executions/{execution_id}/steer")
async def steer(
    execution_id: ExecutionId, body: SteerSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ExecutionSteered:
    """Send a message that the agent reads before its next step; if there is none, its successor reads it."""
    row, execution = await load_execution(api, caller, execution_id)
    content = require_text(body.content)
    steering = await api.sessions_for(caller).steer(row.ref, content, str(key.id("steer")))
    return ExecutionSteered.from_steering(await execution.get(), steering)


@routes.post("/agent/executions/{execution_id}/pause")
async def pause(execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep) -> ExecutionResponse:
    """Pause an execution once its running calls are done."""
    _, execution = await load_execution(api, caller, execution_id)
    await execution.pause(key=str(key.id("pause")))
    return ExecutionResponse.of(await execution.get(), in_full=caller.sees_all)


@routes.post("/agent/executions/{execution_id}/resume")
async def resume(execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep) -> ExecutionResponse:
    """Resume a paused execution."""
    _, execution = await load_execution(api, caller, execution_id)
    await execution.resume(key=str(key.id("resume")))
    return ExecutionResponse.of(await execution.get(), in_full=caller.sees_all)


@routes.post("/agent/executions/{execution_id}/cancel")
async def cancel(execution_id: ExecutionId, api: ApiDep, caller: CallerDep, key: KeyDep) -> ExecutionResponse:
    """Stop an execution now and abandon its current step. Cancelling it again changes nothing."""
    row, execution = await load_execution(api, caller, execution_id)
    is_pending = row.status is ExecutionStatus.PENDING
    is_stored = await api.sessions_for(caller).cancel(row.ref, str(key.id("cancel")), is_pending=is_pending)
    return ExecutionResponse.of(await execution.get() if is_stored else row, in_full=caller.sees_all)


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


async def _require_request(execution: Handle, request_id: UUID | None, kind: CallNeed) -> None:
    if request_id is None:
        return
    request = await execution.client.store.request(execution.ref, request_id)
    if request is None or request.kind is not kind:
        raise not_found("question" if kind is CallNeed.INPUT else "approval", request_id)
