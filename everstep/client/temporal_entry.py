"""Everstep for services that have only a Temporal client.

A worker serves these as standalone activities, which need no workflow:

    await temporal.execute_activity(
        "everstep.start", StartRequest(agent="travel", message="Book me a trip"),
        id=str(uuid4()), task_queue="everstep", start_to_close_timeout=timedelta(seconds=30),
        result_type=Standing,
    )

This sends texts through Temporal, though never into a workflow's history. If Temporal must not see them,
configure a payload codec on both sides, or use the client or the HTTP API.
"""

from collections.abc import Iterable
from typing import Any, Literal, cast
from uuid import UUID

from pydantic import BaseModel, ConfigDict, field_validator
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.capabilities.approvals import Digest
from everstep.agent_domain.capabilities.rights import ALL_SESSIONS, OPERATOR_SCOPES, TEMPORAL, Actor, Decider
from everstep.agent_domain.checks import StrictModel
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.loop.budget import Budget
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import usd_number
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.storage.requests import RequestKind
from everstep.agent_domain.storage.sessions import Scope
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.client.client import Client
from everstep.client.execution import Execution, now
from everstep.telemetry.tracing import name_execution


class _Contract(StrictModel):
    """The base of arguments: unknown fields are refused."""

    model_config = ConfigDict(frozen=True)


class StartBudget(_Contract):
    """What the model calls of the execution may use, with its subagents; it can only lower the agent's."""

    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    on_exhausted: Literal["stop", "ask"] | None = None
    """`ask` pauses the execution until a person raises the budget; default: it ends."""


class StartRequest(_Contract):
    """Start an execution; a repeated `execution_id` starts nothing new."""

    agent: str
    message: str
    execution_id: UUID | None = None
    session_id: UUID | None = None
    debug: bool = False
    """Store the full state after each step."""
    broadcast: Literal["minimal", "standard", "debug"] | None = None
    """The level of detail of the events; default: the agent's."""
    model: str | None = None
    """A preset, or a model in one line; default: the agent's."""
    output: dict[str, Any] | None = None
    """The JSON schema of the result; default: the agent's."""
    budget: StartBudget | None = None
    """What the execution may use."""
    attachments: tuple[UUID, ...] = ()
    """The ids of files that were uploaded over HTTP."""

    @field_validator("attachments", mode="before")
    @classmethod
    def _require_ids(cls, given: object) -> object:
        """Refuse files themselves: Temporal must not carry their content."""
        parts = cast("Iterable[object]", given) if isinstance(given, list | tuple) else (given,)
        if all(isinstance(each, str | UUID) for each in parts):
            return cast("object", given)
        raise ValueError(
            "attachments are ids of files; upload each with POST /agent/attachments and pass its id"
        )

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """One budget for each amount.

        Raises:
            InvalidInput: There is no amount, or one cannot be used.
        """
        return parse_budgets(self.budget.model_dump(), "budget") if self.budget else ()


class ActRequest(_Contract):
    """Act on an existing execution."""

    execution_id: UUID
    act: Literal["show", "answer", "approve", "deny", "edit", "steer", "pause", "resume", "cancel"]
    text: str = ""
    """The answer, the steering message, or the reason for a denial."""
    data: Any = None
    """The answer to a form, or the edited arguments."""
    request_id: UUID | None = None
    args_digest: Digest | None = None
    """The digest of the call; required by `approve`, `deny` and `edit`."""

    @property
    def required_digest(self) -> str:
        """The digest.

        Raises:
            InvalidInput: There is none.
        """
        if self.args_digest is None:
            raise InvalidInput(
                f"{self.act} needs an args_digest; send the one of the request, which `show` lists"
            )
        return self.args_digest


class OpenRequest(BaseModel):
    """An open request of an execution."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: UUID
    kind: CallNeed | RequestKind
    tool: str
    args_digest: str
    approver: tuple[str, ...] = ()
    """Who may decide about the call."""


class ExecutionReport(BaseModel):
    """The status of an execution, with its open requests."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    execution_id: UUID
    status: ExecutionStatus
    step_count: int
    stop_reason: StopReason | None = None
    response: str | None = None
    data: Any = None
    """The structured result, if the execution has one."""
    error: str | None = None
    cost_usd: float | None = None
    """What it cost so far, with its subagents, in US dollars; None if that is unknown."""
    requests: tuple[OpenRequest, ...] = ()
    """The open requests, oldest first."""

    @classmethod
    async def of(cls, execution: Execution) -> "ExecutionReport":
        """Read the status of an execution."""
        row = await execution.get()
        name_execution(row.ref)
        waits = row.status is ExecutionStatus.PAUSED
        requests = await execution.requests() if waits else ()
        return cls(
            execution_id=row.ref.execution_id,
            status=row.status,
            step_count=row.step_count,
            stop_reason=row.stop_reason,
            response=row.output.get("response") if row.output else None,
            data=row.output.get("data") if row.output else None,
            error=row.error_told or (row.error_message and "Failed"),
            cost_usd=usd_number(row.tree_cost_usd),
            requests=tuple(
                OpenRequest(
                    id=each.id,
                    kind=each.kind,
                    tool=each.tool,
                    args_digest=each.args_digest,
                    approver=each.policy.approver if each.policy else (),
                )
                for each in requests
            ),
        )


class TemporalEntry:
    """The activities that services call instead of a client.

    Their callers send no token: they have the role `temporal`, and with `may_approve` also the scopes that
    decide about calls.
    """

    def __init__(self, client: Client, *, may_approve: bool = False) -> None:
        self.client = client
        self.may_approve = may_approve

    @activity.defn(name="everstep.start")
    async def start(self, request: StartRequest) -> ExecutionReport:
        """Accept a message and start an execution for it."""
        # A retry must not start a second execution: the id derives from the activity.
        named = request.execution_id or self.client.derived_id(_activity_key())
        try:
            execution = await self.client.start(
                request.agent,
                await self._message(request),
                execution_id=named,
                session_id=request.session_id,
                debug=request.debug,
                broadcast=request.broadcast and BroadcastConfig.preset(request.broadcast),
                model=request.model,
                output=request.output,
                budgets=request.budgets,
            )
            return await ExecutionReport.of(execution)
        except EverstepError as error:
            raise _refusal(error) from error

    async def _message(self, request: StartRequest) -> Message:
        """Return the first message, with the files of the tenant that it names."""
        if not request.attachments:
            return user(request.message)
        files = self.client.require_attachments()
        attached = await files.for_message(Scope(self.client.tenant_id), request.attachments, None)
        return Message.user(request.message, attachments=attached)

    @activity.defn(name="everstep.act")
    async def act(self, request: ActRequest) -> ExecutionReport:
        """Act on an execution, and return its status."""
        execution = self.client.execution(request.execution_id)
        try:
            await _perform_act(execution, request, self._actor(request))
            return await ExecutionReport.of(execution)
        except EverstepError as error:
            raise _refusal(error) from error

    def _actor(self, request: ActRequest) -> Actor:
        info = activity.info()
        decides = request.act in {"approve", "deny", "edit"}
        scopes = OPERATOR_SCOPES if self.may_approve else ()
        subject = f"temporal:{info.workflow_id or info.activity_type}"
        return Actor(subject, scopes if decides else (ALL_SESSIONS,), (TEMPORAL,))


async def _perform_act(execution: Execution, request: ActRequest, by: Actor) -> None:
    key = _activity_key()
    match request.act:
        case "answer":
            await execution.submit_input(
                request.text, data=request.data, request_id=request.request_id, key=key, by=by
            )
        case "approve":
            await execution.approve(request.request_id, args_digest=request.required_digest, key=key, by=by)
        case "deny":
            reason = request.text or None
            await execution.deny(
                request.request_id, reason=reason, args_digest=request.required_digest, key=key, by=by
            )
        case "edit":
            await execution.edit(
                request.data or {}, request.request_id, args_digest=request.required_digest, key=key, by=by
            )
        case "steer":
            await execution.steer(request.text, key=key)
        case "cancel":
            await execution.cancel(key=key, sent_by=Decider(by.subject, now(), roles=by.roles))
        case "pause" | "resume":
            await getattr(execution, request.act)(key=key)
        case "show":
            """Only return the status."""


def _activity_key() -> str:
    """The idempotency key of a call, the same for every attempt of the activity.

    Callers choose the ids of standalone activities. In a workflow the ids are numbers, so the key includes
    the workflow and its run.
    """
    info = activity.info()
    named = (
        (info.workflow_id, info.workflow_run_id, info.activity_id)
        if info.workflow_id
        else (info.activity_id,)
    )
    return "/".join(map(str, named))


def _refusal(error: EverstepError) -> ApplicationError:
    # Not retryable: the request is invalid, or conflicts with the state of the execution. Benign: the worker
    # worked correctly, and its log needs no stack trace.
    return ApplicationError(
        str(error),
        type=type(error).__name__,
        non_retryable=True,
        category=ApplicationErrorCategory.BENIGN,
    )
