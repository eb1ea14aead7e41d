"""Lookups of executions for callers that answer, decide or command."""

from uuid import UUID

from everstep.agent_domain.capabilities.rights import ANSWER, Decider, command_decider
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.client.execution import Execution, now
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.problems import not_found
from everstep.telemetry.tracing import name_execution


async def load_for_decision(
    api: Api, caller: Caller, execution_id: UUID, request_id: UUID, kind: CallNeed
) -> Execution:
    """Load the execution of a request that the caller sees.

    Raises:
        Refusal: There is none.
    """
    execution = Execution(api.client_for(caller), ExecutionRef(execution_id, caller.tenant_id))
    request = await execution.client.store.request(execution.ref, request_id)
    if request is None or request.kind is not kind or not caller.sees_request(request):
        raise not_found("question" if kind is CallNeed.INPUT else "approval", request_id)
    name_execution(request.ref)
    return Execution(execution.client, request.ref)


async def load_for_answer(api: Api, caller: Caller, execution_id: UUID) -> Execution:
    """Load an execution whose oldest question is answered; its owner is known before its questions are.

    Raises:
        Refusal: There is none.
        NotPermitted: The caller may not answer its questions.
    """
    execution = Execution(api.client_for(caller), ExecutionRef(execution_id, caller.tenant_id))
    row = await execution.client.store.execution(execution.ref)
    if row is None or not (caller.scope.covers(row.user_id) or caller.request_access.kinds):
        raise not_found("execution", execution_id)
    name_execution(row.ref)
    command_decider(caller.actor, ANSWER, row.user_id, now())
    return Execution(execution.client, row.ref)


async def load_for_command(
    api: Api, caller: Caller, execution_id: UUID, right: Grant
) -> tuple[ExecutionRow, Execution, Decider]:
    """Load an execution that the caller may steer or cancel: its own, or with the right any.

    Raises:
        Refusal: There is none.
    """
    execution = Execution(api.client_for(caller), ExecutionRef(execution_id, caller.tenant_id))
    row = await execution.client.store.execution(execution.ref)
    if row is None or not (caller.scope.covers(row.user_id) or right in caller.grants):
        raise not_found("execution", execution_id)
    name_execution(row.ref)
    sent_by = command_decider(caller.actor, right, row.user_id, now())
    return row, Execution(execution.client, row.ref), sent_by
