"""Arguments and results of the tools by which clients of MCP use agents."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, Field, StrictInt, StrictStr, WithJsonSchema

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow
from everstep.agent_domain.values import EMPTY
from everstep.http_api.schemas.execution_responses import ExecutionResponse, Request
from everstep.http_api.schemas.request_bodies import Content, NewTotalSent
from everstep.http_api.schemas.text import Json, Map, Moment, RequestModel, ResponseModel, Text, Usd

MAX_WAIT = 45
"""The longest wait of one call in seconds: many hosts give up on a call after a minute."""

Id = Annotated[UUID, WithJsonSchema({"type": "string"})]
ExecutionIdField = Annotated[Id, Field(description="The `execution_id` that `start` returned.")]


class StartArguments(RequestModel):
    """The arguments of `start`."""

    agent: Text = Field(max_length=200, description="The name of the agent.")
    message: Content = Field(min_length=1, description="The task or the question, with all that it needs.")
    session_id: Id | None = Field(
        default=None,
        description="The `session_id` of an earlier result, to continue its conversation; by default a new "
        "conversation begins.",
    )
    idempotency_key: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="A unique name for this call, such as a UUID: repeating the call with the same key "
        "starts nothing again and returns the same execution.",
    )


class StatusArguments(RequestModel):
    """The arguments of `status`."""

    execution_id: ExecutionIdField


class ResultArguments(RequestModel):
    """The arguments of `result`."""

    execution_id: ExecutionIdField
    wait_seconds: float = Field(
        default=MAX_WAIT, ge=0, le=MAX_WAIT, description="How long to wait for the end, in seconds."
    )


class AnswerArguments(RequestModel):
    """The arguments of `answer`."""

    execution_id: ExecutionIdField
    request_id: Id | None = Field(
        default=None, description="The request that is answered; required if several are open."
    )
    text: Content | None = Field(
        default=None, description="For a question: the answer; one of `choices` if there are any."
    )
    data: Json = Field(default=None, description="For a question with a `schema`: the answer as JSON.")
    decision: Literal["approve", "deny", "edit"] | None = Field(
        default=None, description="For an approval. `edit` approves the call with other arguments, `args`."
    )
    args: Map | None = Field(default=None, description="For `edit`: all arguments of the call.")
    args_digest: str | None = Field(
        default=None, description="For an approval: the `args_digest` of the call that the person has seen."
    )
    reason: Content | None = Field(default=None, description="For `deny`: the reason; the agent reads it.")
    budget: NewTotalSent | None = Field(default=None, description="For a budget: its new total.")
    cancel: bool = Field(
        default=False, description="Stop the execution, whether or not it waits for an answer."
    )

    @property
    def has_answer(self) -> bool:
        """Whether the call answers anything."""
        given = (self.text, self.data, self.decision, self.budget)
        return any(each is not None for each in given)


class AgentRunRequest(ResponseModel):
    """A question, a call that needs an approval, or an exhausted budget."""

    request_id: Id
    execution_id: Id
    kind: Literal["question", "approval", "budget"]
    prompt: str | None = Field(default=None, description="The question.")
    choices: Sequence[str] | None = Field(default=None, description="The possible answers.")
    schema_: Mapping[str, Any] | None = Field(
        default=None, alias="schema", description="The JSON schema of the answer, to send as `data`."
    )
    tool: str | None = Field(default=None, description="The tool that the agent wants to call.")
    args: Mapping[str, Any] | None = Field(default=None, description="The arguments of the call.")
    args_digest: str | None = None
    budget: Mapping[str, Any] | None = Field(default=None, description="What was exhausted.")
    may_answer: bool = Field(description="Whether you may answer it; otherwise other people do.")
    approvers: Sequence[str] | None = Field(default=None, description="Who may decide, any of these.")

    @classmethod
    def from_request(cls, row: RequestRow, shown: Request) -> Self:
        """Describe an open request.

        Args:
            row: The stored request.
            shown: The request as the caller may read it.
        """
        asked, fields = row.request, dict[str, Any]()
        match row.kind:
            case CallNeed.APPROVAL:
                kind = "approval"
                fields = {
                    "tool": row.tool,
                    "args": row.args,
                    "args_digest": row.args_digest,
                    "approvers": shown.approver,
                }
            case RequestKind.BUDGET:
                kind, fields = "budget", {"budget": asked}
            case _:
                kind = "question"
                fields = {
                    "prompt": asked.get("prompt"),
                    "choices": asked.get("choices") or None,
                    "schema": asked.get("schema") or None,
                }
        return cls(
            request_id=row.id,
            execution_id=row.ref.execution_id,
            kind=kind,
            may_answer=shown.may_decide,
            **fields,
        )

    def to_json(self) -> dict[str, Any]:
        """The document without what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class AgentRun(ResponseModel):
    """One run of an agent: how it is now, and what to do next."""

    execution_id: Id
    session_id: Id | None = Field(default=None, description="The conversation; pass it to `start` to go on.")
    agent: str
    status: ExecutionStatus = Field(
        description="How the run is. `paused`: it waits for people, itself or in a subagent."
    )
    is_over: bool = Field(description="Whether the run has ended, in any way.")
    next: str = Field(description="What to do now.")
    because: str | None = Field(default=None, description="Why it ended, or what it waits for.")
    steps: int
    requests: Sequence[AgentRunRequest] = Field(
        default=(), description="The open questions and approvals: `answer` them, or ask your user to."
    )
    response: str | None = Field(default=None, description="The answer of the agent.")
    data: Any = Field(default=None, description="The structured result, if the agent has one.")
    error: str | None = Field(default=None, description="Why the run failed.")
    cost_usd: Usd | None = Field(default=None, description="What its model calls cost, in US dollars.")
    created_at: Moment
    updated_at: Moment = Field(description="When it ended, or else the time of this document.")

    @classmethod
    def from_row(
        cls,
        row: ExecutionRow,
        requests: Sequence[AgentRunRequest],
        because: str | None,
        *,
        in_full: bool,
        has_conversation: bool,
        is_cancelling: bool = False,
    ) -> Self:
        """Describe an execution.

        Args:
            row: The execution.
            requests: Its open requests that the caller sees, with those of its subagents.
            because: Why it ended, or what it waits for.
            in_full: Whether to include the texts of errors.
            has_conversation: Whether the caller may read the conversation.
            is_cancelling: Whether a cancel is under way.
        """
        # A subagent may wait while the execution itself runs.
        waits = bool(requests) and not row.status.is_terminal
        shown = ExecutionResponse.of(row, in_full=in_full)
        output: Mapping[str, Any] = (shown.output if has_conversation else None) or EMPTY
        response = output.get("response")
        cost = row.cost_usd if row.tree_cost_usd is None else row.tree_cost_usd
        return cls(
            execution_id=shown.id,
            session_id=shown.session_id,
            agent=row.agent,
            status=ExecutionStatus.PAUSED if waits else row.status,
            is_over=row.status.is_terminal,
            next=_next(row.status, requests, is_cancelling=is_cancelling),
            because=because,
            steps=row.step_count,
            requests=requests,
            response=response if isinstance(response, str) else None,
            data=output.get("data"),
            error=shown.error_message if has_conversation else None,
            cost_usd=cost,
            created_at=row.created_at,
            updated_at=row.completed_at or datetime.now(UTC),
        )

    def to_json(self) -> dict[str, Any]:
        """The document without what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _next(
    status: ExecutionStatus, requests: Sequence[AgentRunRequest], *, is_cancelling: bool = False
) -> str:
    if status.is_terminal:
        return f"The run is over ({status})."
    if is_cancelling:
        return "It is being cancelled, which takes a moment. Call `result` until `is_over` is true."
    if any(request.may_answer for request in requests):
        return "It waits for people: ask your user, and pass the reply to `answer`; then call `result`."
    if requests:
        return "It waits for other people, who were notified. Call `result` later."
    if status is ExecutionStatus.PAUSED:
        return "It is paused. Call `result` later."
    return "It is still running, even if you disconnect. Call `result` again."


class JsonRpcMessage(BaseModel):
    """A message of JSON-RPC: a request, or a notification without an id."""

    jsonrpc: Literal["2.0"]
    id: StrictStr | StrictInt = 0
    method: StrictStr
    params: Mapping[str, Any] = {}


class JsonRpcError(ResponseModel):
    """The error of a JSON-RPC response."""

    code: int
    message: str
    data: Any = None


class JsonRpcRefusal(ResponseModel):
    """An error in response to a message."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | int | None = Field(
        default=None, description="The id of the message; null if it was refused before it was read."
    )
    error: JsonRpcError
