"""Response models about executions."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.capabilities.rights import ANSWER, Actor, Decider
from everstep.agent_domain.loop.budget import BudgetScope, BudgetUnit, OnExhausted, number
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.disclosure import public_document
from everstep.agent_domain.storage.budget_ledger import BudgetAccount
from everstep.agent_domain.storage.commands import Steering
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.storage.sessions import (
    SnapshotRow,
)
from everstep.http_api import samples
from everstep.http_api.callers import Grant
from everstep.http_api.samples import example
from everstep.http_api.schemas.text import Moment, ResponseModel, Usd


class DecidedBy(ResponseModel):
    """Who decided about a request, with the rights that this used."""

    subject: str = Field(description="The user or the key; `temporal:...` for a client of Temporal.")
    scopes: list[str] = Field(description="The scopes that the decision used; none for the owner's own.")
    roles: list[str] = Field(default_factory=list, description="The roles that the decision used.")
    key_id: UUID | None = Field(default=None, description="The API key, if one was sent.")
    at: Moment

    @classmethod
    def of(cls, decider: Decider) -> Self:
        """Convert a stored decider."""
        return cls(
            subject=decider.subject,
            scopes=list(decider.scopes),
            roles=list(decider.roles),
            key_id=decider.key_id,
            at=decider.at,
        )


class Request(ResponseModel):
    """A question to people, or a call that waits for their approval."""

    model_config = example(samples.REQUEST)

    id: UUID
    execution_id: UUID
    session_id: UUID | None
    kind: CallNeed | RequestKind = Field(
        description="`input` for a question, `approval` for a call, `budget` for an exhausted budget."
    )
    state: RequestState
    tool: str
    args: Mapping[str, Any]
    args_digest: str = Field(description="The digest that a decision must send back.")
    request: Mapping[str, Any] = Field(
        description="For a question: its prompt, choices and schema. For a budget: its amounts."
    )
    created_at: Moment
    agent: str = Field(default="", description="The agent that asks.")
    user_id: str | None = Field(default=None, description="The user of the execution.")
    approver: list[str] = Field(
        default_factory=list,
        description="Who may decide about a call, any of these: `owner`, `scope:NAME` or `role:NAME`.",
    )
    four_eyes: bool = Field(default=False, description="Whether the user of the execution may not decide.")
    expires_at: Moment | None = Field(
        default=None, description="When the call is denied if no one has decided; null for never."
    )
    may_decide: bool = Field(default=False, description="Whether the caller may decide or answer now.")
    decision: str | None = Field(
        default=None,
        description="`approve`, `deny`, `edit`, `answer`, `raise`, or `expired`; null while it is open.",
    )
    reason: str | None = Field(default=None, description="The reason for a denial.")
    edited_args: Mapping[str, Any] | None = Field(
        default=None, description="The arguments that replaced the requested ones."
    )
    decided_by: DecidedBy | None = Field(
        default=None,
        description="Who decided or answered; null while it is open, for what no caller decided, and for "
        "decisions of older releases.",
    )

    @classmethod
    def of(cls, row: RequestRow, *, actor: Actor | None = None) -> Self:
        """Convert a stored row, for the caller that reads it."""
        resolution, policy = row.resolution, row.policy
        return cls(
            id=row.id,
            execution_id=row.ref.execution_id,
            session_id=row.ref.session_id,
            kind=row.kind,
            state=row.state,
            tool=row.tool,
            args=row.args,
            args_digest=row.args_digest,
            request=row.request,
            created_at=row.created_at,
            agent=row.agent,
            user_id=row.user_id,
            approver=list(policy.approver) if policy else [],
            four_eyes=policy is not None and policy.four_eyes,
            expires_at=row.expires_at,
            may_decide=actor is not None and _may_decide(row, actor),
            decision=resolution.outcome if resolution else None,
            reason=resolution.reason if resolution else None,
            edited_args=resolution.edited_args if resolution else None,
            decided_by=DecidedBy.of(resolution.by) if resolution and resolution.by else None,
        )


def _may_decide(row: RequestRow, actor: Actor) -> bool:
    if row.state is RequestState.RESOLVED or actor.has_scope(Grant.READ_ONLY):
        return False
    if row.policy is not None:
        return row.policy.permits(actor, row.user_id)
    return actor.acts_for(row.user_id) or actor.has_scope(ANSWER)


class BudgetResponse(ResponseModel):
    """A budget, with what was spent of it."""

    model_config = example(samples.BUDGET)

    unit: BudgetUnit
    limit: float
    spent: float
    reserved: float = Field(description="What model calls under way may still use.")
    scope: BudgetScope = Field(description="Which executions share it.")
    on_exhausted: OnExhausted
    set_by: Literal["agent", "operator"] = "agent"

    @classmethod
    def of(cls, account: BudgetAccount) -> Self:
        """Convert a budget."""
        return cls(
            unit=account.unit,
            limit=number(account.limit),
            spent=number(account.spent),
            reserved=number(account.reserved),
            scope=account.scope,
            on_exhausted=account.on_exhausted,
            set_by="operator" if account.is_operators else "agent",
        )


class ExecutionResponse(ResponseModel):
    """One run of an agent from its start to its stop reason."""

    model_config = example(samples.EXECUTION)

    id: UUID
    session_id: UUID | None
    parent_execution_id: UUID | None
    user_id: str | None
    agent: str
    definition_hash: str | None = Field(
        default=None,
        description="SHA-256 of the agent's definition when the execution was accepted; null in lists.",
    )
    status: ExecutionStatus
    stop_reason: StopReason | None
    step_count: int
    usage: Mapping[str, Any]
    cost_usd: Usd | None = Field(
        default=None,
        description="What its model calls cost so far, in US dollars, without subagents; null if the cost of "
        "a call is unknown.",
    )
    tree_cost_usd: Usd | None = Field(
        default=None,
        description="The same with its subagents; null if that is unknown, and in lists.",
    )
    output: Mapping[str, Any] | None = Field(
        description="`response` and `stop_reason` of an ended execution, and `data` if a structured result "
        "was asked for: null if it ended without one."
    )
    error_message: str | None
    last_snapshot_id: UUID | None = Field(default=None, description="The latest snapshot of the execution.")
    metadata: Mapping[str, Any]
    cancelled_by: DecidedBy | None = Field(
        default=None, description="Who cancelled the execution; null if no caller did, and in lists."
    )
    queue_position: int | None = Field(
        default=None,
        description="Its position in the queue of its tenant, from 1, while it is pending because the tenant "
        "or the user runs as many executions as their limits allow; else null.",
    )
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    because: str | None = Field(
        default=None,
        description="Why it ended, in one sentence; null while it is under way, in lists without `because`, "
        "and for executions of older releases: `/because` explains them.",
    )
    budget: BudgetResponse | None = Field(
        default=None,
        description="The budget of the execution: of several the one with the least left. Null without one, "
        "and in lists.",
    )
    budgets: list[BudgetResponse] = Field(
        default_factory=list[BudgetResponse],
        description="All budgets that apply, also those of its session, user and tenant; empty in lists.",
    )

    def with_budgets(self, accounts: Sequence[BudgetAccount]) -> Self:
        """Add the budgets that apply to the execution."""
        order = list(BudgetScope)
        first = min(accounts, key=lambda each: (order.index(each.scope), each.share_left), default=None)
        return self.model_copy(
            update={
                "budget": first and BudgetResponse.of(first),
                "budgets": [BudgetResponse.of(account) for account in accounts],
            }
        )

    def with_because(self, because: str | None) -> Self:
        """Add why the execution ended."""
        return self.model_copy(update={"because": because})

    @classmethod
    def of(cls, row: ExecutionRow, *, in_full: bool = False) -> Self:
        """Convert a stored row; `in_full` includes the texts of errors."""
        public_message = row.error_told or (row.error_message and GENERIC_ERROR)
        return cls(
            id=row.ref.execution_id,
            session_id=row.ref.session_id,
            parent_execution_id=row.parent_execution_id,
            user_id=row.user_id,
            agent=row.agent,
            definition_hash=row.definition_hash,
            status=row.status,
            stop_reason=row.stop_reason,
            step_count=row.step_count,
            usage=row.usage,
            cost_usd=row.cost_usd,
            tree_cost_usd=row.tree_cost_usd,
            output=row.output,
            error_message=row.error_message if in_full else public_message,
            last_snapshot_id=row.last_snapshot_id,
            metadata=row.metadata,
            cancelled_by=DecidedBy.of(row.cancelled_by) if row.cancelled_by else None,
            queue_position=row.queue_position,
            created_at=row.created_at,
            started_at=row.started_at,
            completed_at=row.completed_at,
        )


class ExecutionCancelled(ExecutionResponse):
    """An execution after it was cancelled."""

    is_cancelling: bool = Field(
        default=False,
        description="Whether the cancel is stored and under way: the execution ends in moments. False if it "
        "has ended.",
    )

    @classmethod
    def from_row(cls, row: ExecutionRow, *, in_full: bool) -> Self:
        """Convert the row of an execution whose cancel is stored."""
        shown = cls.of(row, in_full=in_full)
        return shown.model_copy(update={"is_cancelling": not row.status.is_terminal})


class ExecutionSteered(ExecutionResponse):
    """An execution that was sent a message, and the execution that receives it."""

    route: Literal["steer", "queue"] = Field(
        description="`steer`: the execution reads the message before its next step, or its successor if a "
        "guard forbids another step. `queue`: the execution is ending, and `heard_by` is its successor."
    )
    heard_by: UUID = Field(description="The execution that receives the message.")

    @classmethod
    def from_steering(cls, row: ExecutionRow, steering: Steering) -> Self:
        """Convert an execution and the result of steering it."""
        route = "queue" if steering.is_moved else "steer"
        heard_by = steering.heard_by.execution_id
        return cls(**ExecutionResponse.of(row).model_dump(), route=route, heard_by=heard_by)


GENERIC_ERROR = "Failed"
"""The public text of errors that an older release stored."""


class Snapshot(ResponseModel):
    """A stored state (snapshot) of an execution."""

    id: UUID
    execution_id: UUID
    parent_snapshot_id: UUID | None = Field(
        description="For a subagent: the latest snapshot of its parent agent."
    )
    previous_snapshot_id: UUID | None = Field(description="The previous snapshot of the same execution.")
    agent_name: str | None
    step_number: int | None
    is_final: bool
    debug_mode: bool
    state: Mapping[str, Any]
    created_at: Moment

    @classmethod
    def of(cls, row: SnapshotRow, *, in_full: bool = False) -> Self:
        """Convert a stored row; `in_full` includes the texts of errors."""
        return cls(
            id=row.id,
            execution_id=row.execution_id,
            parent_snapshot_id=row.parent_snapshot_id,
            previous_snapshot_id=row.previous_snapshot_id,
            agent_name=row.agent_name,
            step_number=row.step_number,
            is_final=row.is_final,
            debug_mode=row.debug_mode,
            state=row.state if in_full else public_document(row.state),
            created_at=row.created_at,
        )
