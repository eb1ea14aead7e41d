"""Executions as tasks of MCP, for clients that offer them: one `start` call has the result of the execution.

Such a client gets a handle, polls it, and is asked for what the execution asks. Tasks have two forms: that of
the protocol version 2025-11-25, which a client requests for a call, and the extension of 2026-07-28.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import mcp_types as types
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.values import format_moment, json_text, parse_uuid, truncate
from everstep.http_api.agent_tools import AgentTools
from everstep.http_api.problems import Refusal, refusal_of_any
from everstep.http_api.schemas.agent_tool_schemas import (
    AgentRun,
    AgentRunRequest,
    AnswerArguments,
    ResultArguments,
    StatusArguments,
)

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLL_MS: Final = 1000
"""The suggested time between two polls."""
MAX_SHOWN_ARGS: Final = 2000
"""The limit of the arguments in the text that asks for a decision, in characters."""

Context = ServerRequestContext[Any, Any]


class UpdateTaskParams(types.RequestParams):
    """The parameters of `tasks/update`."""

    task_id: str
    input_responses: dict[str, types.ElicitResult]


class TaskServer(Server[Any]):
    """A server that offers tasks."""

    def __init__(self, *given: Any, tools: AgentTools, **named: Any) -> None:
        super().__init__(*given, **named)
        self._tasks = RunTasks(tools)
        self.extensions[EXTENSION] = {}
        self.middleware.append(self._tasks.intercept)
        self.add_request_handler("tasks/get", types.GetTaskRequestParams, self._tasks.read)
        self.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._tasks.cancel)
        self.add_request_handler("tasks/update", UpdateTaskParams, self._tasks.update)
        self.add_request_handler("tasks/result", types.GetTaskPayloadRequestParams, self._tasks.wait)

    def get_capabilities(self, *given: Any, **named: Any) -> types.ServerCapabilities:
        """Add the capability of the versions with a handshake."""
        capabilities = super().get_capabilities(*given, **named)
        if named.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            return capabilities
        calls = types.ServerTasksRequestsCapability(
            tools=types.TasksToolsCapability(call=types.TasksCallCapability())
        )
        tasks = types.ServerTasksCapability(cancel=types.TasksCancelCapability(), requests=calls)
        return capabilities.model_copy(update={"tasks": tasks, "extensions": None})


def wants_task(context: Context) -> bool:
    """Whether the client of a call takes a task in place of its result."""
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        capabilities = context.session.client_capabilities
        return EXTENSION in ((capabilities and capabilities.extensions) or {})
    return context.protocol_version == LATEST_HANDSHAKE_VERSION and "task" in (context.params or {})


class RunTasks:
    """The tasks of one caller."""

    def __init__(self, tools: AgentTools) -> None:
        self._tools = tools

    async def intercept(self, ctx: Context, call_next: CallNext) -> Any:
        """Return a task for a call of `start`, if the client takes one."""
        params = ctx.params or {}
        is_start = ctx.method == "tools/call" and params.get("name") == "start"
        result = await call_next(ctx)
        if not (is_start and isinstance(result, dict) and wants_task(ctx)) or result.get("isError"):
            return result
        run = await self._read(result["structuredContent"]["execution_id"])
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {"resultType": "task", **_task(run, is_modern=True, asks=False)}
        # The SDK knows no tasks of this version, so that its check would refuse them.
        return {"task": _task(run, is_modern=False, asks=False)}

    async def read(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        """Handle `tasks/get`."""
        run = await self._read(params.task_id)
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not is_modern:
            return _task(run, is_modern=False, asks=True)
        asked = [request for request in run.requests if request.may_answer] if _can_ask(context) else []
        task = _task(run, is_modern=True, asks=bool(asked))
        if task["status"] == "completed":
            return task | {"result": _call_result(run)}
        if asked:
            return task | {"inputRequests": {str(each.request_id): _elicitation(each) for each in asked}}
        return task

    async def cancel(self, context: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
        """Handle `tasks/cancel`."""
        execution_id = _execution_id(params.task_id)
        if (run := await self._read(params.task_id)).is_over:
            return {} if context.protocol_version in MODERN_PROTOCOL_VERSIONS else _over(run)
        arguments = AnswerArguments(execution_id=execution_id, cancel=True)
        try:
            run = await self._tools.answer(arguments)
        except Exception as error:
            raise _protocol_error(error) from error
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {}
        return _task(run, is_modern=False, asks=False) | {"status": "cancelled"}

    async def update(self, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
        """Handle `tasks/update`: answers to open requests; others are ignored."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", "tasks/update")
        run = await self._read(params.task_id)
        for request in run.requests:
            response = params.input_responses.get(str(request.request_id))
            answer = None if response is None else _answer(run, request, response)
            if answer is not None:
                try:
                    await self._tools.answer(answer)
                except Exception as error:
                    raise _protocol_error(error) from error
        return {}

    async def wait(self, context: Context, params: types.GetTaskPayloadRequestParams) -> dict[str, Any]:
        """Handle `tasks/result` of 2025-11-25: the result of the call that created the task."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", "tasks/result")

        async def on_wait(waited: float, how: str) -> None:
            del waited, how

        arguments = ResultArguments(execution_id=_execution_id(params.task_id))
        try:
            run = await self._tools.result(arguments, on_wait)
        except Exception as error:
            raise _protocol_error(error) from error
        if not run.is_over:
            raise MCPError(INVALID_REQUEST, f"The task is not over; poll tasks/get. {run.next}")
        meta = {"io.modelcontextprotocol/related-task": {"taskId": params.task_id}}
        return {**_call_result(run), "_meta": meta}

    async def _read(self, task_id: str) -> AgentRun:
        try:
            return await self._tools.status(StatusArguments(execution_id=_execution_id(task_id)))
        except Exception as error:
            raise _protocol_error(error) from error


def _execution_id(task_id: str) -> UUID:
    try:
        return parse_uuid(task_id, "taskId")
    except InvalidInput as error:
        raise _protocol_error(error) from error


def _protocol_error(error: Exception) -> Exception:
    """The error of JSON-RPC for a refusal."""
    if isinstance(error, MCPError) or not isinstance(error, EverstepError):
        return error
    refusal: Refusal = refusal_of_any(error)
    return MCPError(INVALID_PARAMS, refusal.detail, {"problem": refusal.slug})


def _task(run: AgentRun, *, is_modern: bool, asks: bool) -> dict[str, Any]:
    """The fields of a task.

    Args:
        run: The execution.
        is_modern: Whether the client speaks the extension.
        asks: Whether the client is asked for what the execution waits for.
    """
    ttl, poll = ("ttlMs", "pollIntervalMs") if is_modern else ("ttl", "pollInterval")
    return {
        "taskId": str(run.execution_id),
        "status": _task_status(run, asks=asks),
        "statusMessage": run.because or run.next,
        "createdAt": format_moment(run.created_at, 3),
        "lastUpdatedAt": format_moment(run.updated_at, 3),
        ttl: None,
        poll: POLL_MS,
    }


def _over(run: AgentRun) -> dict[str, Any]:
    raise MCPError(INVALID_PARAMS, f"The task is over ({run.status}) and cannot be cancelled")


def _task_status(run: AgentRun, *, asks: bool) -> str:
    if run.status is ExecutionStatus.CANCELLED:
        return "cancelled"
    if run.is_over:
        # A failed execution is the result of a call, not a failure of the protocol.
        return "completed"
    return "input_required" if asks and any(each.may_answer for each in run.requests) else "working"


def _call_result(run: AgentRun) -> dict[str, Any]:
    document = run.to_json()
    content = [{"type": "text", "text": json_text(document)}]
    return {"resultType": "complete", "content": content, "structuredContent": document, "isError": False}


def _can_ask(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    elicitation = capabilities and capabilities.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _elicitation(request: AgentRunRequest) -> dict[str, Any]:
    """What a client is asked: forms of the protocol have a flat schema."""
    match request.kind:
        case "approval":
            args = truncate(json_text(request.to_json().get("args", {})), MAX_SHOWN_ARGS)
            message = f"The agent wants to call {request.tool} with {args}"
            properties = {
                "decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]},
                "reason": {"type": "string", "title": "Reason for a denial"},
            }
            required = ["decision"]
        case "budget":
            unit = str((request.budget or {}).get("unit", "usd"))
            message = f"The budget is exhausted: {json_text(request.to_json().get('budget', {}))}"
            properties = {unit: {"type": "number", "title": f"The new total in {unit}"}}
            required = [unit]
        case "question":
            choices = {"enum": list(request.choices)} if request.choices else {}
            as_json = " (as JSON)" if request.schema_ else ""
            message = request.prompt or "The agent asks a question"
            if request.schema_:
                message += f"\nThe answer is JSON with this schema: {json_text(request.to_json()['schema'])}"
            properties = {"answer": {"type": "string", "title": f"Answer{as_json}", **choices}}
            required = ["answer"]
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def _answer(run: AgentRun, request: AgentRunRequest, response: types.ElicitResult) -> AnswerArguments | None:
    """The answer in a response; None if the person gave none, so that the request stays open."""
    named: dict[str, Any] = {"execution_id": run.execution_id, "request_id": request.request_id}
    content: Mapping[str, str | int | float | bool | Sequence[str] | None] = response.content or {}
    if response.action == "cancel" or (response.action == "decline" and request.kind != "approval"):
        return None
    match request.kind:
        case "approval":
            is_approved = response.action == "accept" and content.get("decision") == "approve"
            decision = {"decision": "approve"} if is_approved else {"decision": "deny"}
            reason = {"reason": content["reason"]} if content.get("reason") and not is_approved else {}
            named |= {**decision, **reason, "args_digest": request.args_digest}
        case "budget":
            named |= {"budget": dict(content)}
        case "question":
            named |= {"text": content.get("answer")}
    return AnswerArguments.model_validate(named)
