"""Reservations of budgets: what a model call claims, what it is granted, and what it spent.

The stores in memory and in PostgreSQL and runs in-process grant by the same rules: see `grant_output`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID, uuid5

from pydantic import TypeAdapter

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import (
    Budget,
    BudgetScope,
    BudgetUnit,
    ExhaustedBudget,
    OnExhausted,
    number,
)

_NAMESPACE = UUID("c35f3c0a-7a0b-4d5e-9a0c-2a9f1d1b6e42")
"""The namespace of the ids of budgets; it must never change."""

ZERO: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class BudgetOwner:
    """Whose budgets apply to a model call: the execution, its session, its user and its tenant."""

    ref: ExecutionRef
    user_id: str | None = None

    def subject(self, budget: Budget) -> str | None:
        """What a budget belongs to, as text; None if the execution has none of that scope."""
        match budget.scope:
            case BudgetScope.EXECUTION:
                return str(budget.root or self.ref.execution_id)
            case BudgetScope.SESSION:
                return self.ref.session_id and str(self.ref.session_id)
            case BudgetScope.USER:
                return self.user_id
            case BudgetScope.TENANT:
                return ""

    def accounts(self, budgets: Iterable[Budget]) -> tuple["BudgetAccount", ...]:
        """The accounts of the budgets of a plan. A budget of a scope that the execution lacks is its own.

        An execution without a session, for example, is a session of one execution.
        """
        accounts: list[BudgetAccount] = []
        for budget in budgets:
            subject = self.subject(budget)
            owned = budget if subject is not None else replace(budget, scope=BudgetScope.EXECUTION)
            accounts.append(BudgetAccount.of(self.ref.tenant_id, owned, self.subject(owned) or ""))
        return tuple(accounts)

    @property
    def operator_ids(self) -> tuple[UUID, ...]:
        """The ids that budgets of the operator have, where there are any."""
        owners = [(BudgetScope.TENANT, "")]
        if self.user_id is not None:
            owners.append((BudgetScope.USER, self.user_id))
        return tuple(
            budget_id(self.ref.tenant_id, scope, subject, "", unit)
            for scope, subject in owners
            for unit in BudgetUnit
        )


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """The budgets under which an execution calls models."""

    owner: BudgetOwner
    budgets: tuple[Budget, ...] = ()
    """Those of its plan."""
    operator_units: tuple[BudgetUnit, ...] = ()
    """The units of the operator's."""

    @property
    def units(self) -> frozenset[BudgetUnit]:
        """The units of all of them; without any, calls are not reserved."""
        return frozenset([*(budget.unit for budget in self.budgets), *self.operator_units])


_BUDGETS = TypeAdapter(tuple[Budget, ...])


def parse_budget_list(data: object) -> tuple[Budget, ...]:
    """Read the budgets of a stored plan."""
    return _BUDGETS.validate_python(data) if data else ()


@lru_cache(10_000)
def budget_id(tenant_id: str, scope: BudgetScope, subject: str, agent: str, unit: BudgetUnit) -> UUID:
    """The id of a budget; the operator's have no agent."""
    return uuid5(uuid5(uuid5(_NAMESPACE, tenant_id), f"{scope}/{unit}/{agent}"), subject)


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """A budget with what was spent of it and what is reserved."""

    id: UUID
    tenant_id: str
    unit: BudgetUnit
    scope: BudgetScope
    subject: str
    limit: Decimal
    agent: str = ""
    """The agent that has it; empty for a budget of the operator."""
    on_exhausted: OnExhausted = OnExhausted.STOP
    degrade_to: str | None = None
    spent: Decimal = ZERO
    reserved: Decimal = ZERO

    @classmethod
    def of(cls, tenant_id: str, budget: Budget, subject: str) -> "BudgetAccount":
        """The account of a budget of a plan, of which nothing was spent."""
        return cls(
            budget_id(tenant_id, budget.scope, subject, budget.agent, budget.unit),
            tenant_id,
            budget.unit,
            budget.scope,
            subject,
            budget.limit,
            budget.agent,
            budget.on_exhausted,
            budget.degrade_to,
        )

    @property
    def is_operators(self) -> bool:
        """Whether the operator has set it, and no agent."""
        return not self.agent

    @property
    def unspent(self) -> Decimal:
        """What is left, including what is reserved."""
        return self.limit - self.spent

    @property
    def share_left(self) -> Decimal:
        """The share of the limit that is not spent."""
        return self.unspent / self.limit if self.limit else ZERO

    def exhausted(self, needed: Decimal) -> ExhaustedBudget:
        """The budget as one that does not cover a call which needs this much."""
        return ExhaustedBudget(
            self.id,
            self.unit,
            self.scope,
            self.limit,
            self.spent,
            self.reserved,
            needed,
            self.on_exhausted,
            self.is_operators,
        )

    def to_dict(self) -> dict[str, Any]:
        """The budget as JSON data; amounts are numbers."""
        return {
            "id": str(self.id),
            "unit": str(self.unit),
            "scope": str(self.scope),
            "limit": number(self.limit),
            "spent": number(self.spent),
            "reserved": number(self.reserved),
            "on_exhausted": str(self.on_exhausted),
        }


@dataclass(frozen=True, slots=True)
class Need:
    """What a model call needs of each budget of a unit: a base, and an amount for each token of output."""

    base: Decimal
    rate: Decimal = ZERO

    def amount(self, output: int) -> Decimal:
        """The worst case with this many tokens of output."""
        return self.base + self.rate * output


@dataclass(frozen=True, slots=True)
class BudgetClaim:
    """A reservation to make before a model call."""

    terms: BudgetTerms
    key: str
    """The model call. A later claim with the same key replaces the earlier one."""
    needs: Mapping[BudgetUnit, Need]
    least: int
    """The fewest tokens of output with which the call is worthwhile."""
    most: int
    """The most tokens of output that the model may produce."""

    @property
    def ref(self) -> ExecutionRef:
        """The execution."""
        return self.terms.owner.ref

    @property
    def accounts(self) -> tuple[BudgetAccount, ...]:
        """The accounts of the plan's budgets."""
        return self.terms.owner.accounts(self.terms.budgets)


@dataclass(frozen=True, slots=True)
class BudgetGrant:
    """A reservation that was made, and how many tokens of output it pays for."""

    output: int


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """Nothing was reserved, because a budget does not cover the call."""

    exhausted: ExhaustedBudget | None
    """The budget; None if it covers the call once other calls are settled."""
    degrade_to: str | None = None
    """The cheaper preset to ask."""


def grant_output(claim: BudgetClaim, accounts: Iterable[BudgetAccount]) -> int | None:
    """How many tokens of output all budgets pay for; None if less than the least.

    Args:
        claim: The claim.
        accounts: The budgets, without what an earlier claim of the same call has reserved.
    """
    output = claim.most
    for account in accounts:
        need = claim.needs.get(account.unit)
        if need is None:
            continue
        left = account.unspent - account.reserved - need.base
        if left < 0:
            return None
        if need.rate:
            output = min(output, int(left // need.rate))
    return output if output >= claim.least else None


def refusal(claim: BudgetClaim, accounts: Sequence[BudgetAccount]) -> BudgetRefusal:
    """Why a claim is refused: the narrowest budget that does not cover it even once others are settled."""
    for account in sorted(accounts, key=lambda each: list(BudgetScope).index(each.scope)):
        need = claim.needs.get(account.unit)
        needed = need.amount(claim.least) if need else ZERO
        if needed > account.unspent:
            degrades = account.on_exhausted is OnExhausted.DEGRADE
            return BudgetRefusal(account.exhausted(needed), account.degrade_to if degrades else None)
    return BudgetRefusal(None)


@dataclass(frozen=True, slots=True)
class BudgetSpending:
    """What a model call spent. It replaces the call's reservation, once."""

    key: str
    amounts: Mapping[BudgetUnit, Decimal]


def spending(key: str, cost_usd: Decimal, tokens: int, steps: int) -> BudgetSpending:
    """What a call spent, in each unit."""
    amounts = {
        BudgetUnit.USD: cost_usd,
        BudgetUnit.TOKENS: Decimal(tokens),
        BudgetUnit.STEPS: Decimal(steps),
    }
    return BudgetSpending(key, amounts)


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    """A request to people to raise a budget, which a pause opens."""

    id: UUID
    budget: ExhaustedBudget
    step_number: int
    place: int
    """Its place in the step, before those of the calls."""


@dataclass(frozen=True, slots=True)
class RaiseBudget:
    """A new limit of a budget, for the executions that wait for it."""

    account: BudgetAccount
    limit: Decimal
    by: Decider | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class RaisedBudget:
    """A budget after it was raised, and the executions that waited for it."""

    account: BudgetAccount
    resumed: tuple[ExecutionRef, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorBudget:
    """A budget that an operator sets for a tenant, or for one of its users."""

    tenant_id: str
    unit: BudgetUnit
    limit: Decimal
    user_id: str | None = None
    on_exhausted: OnExhausted = OnExhausted.STOP
    degrade_to: str | None = None
    created_at: datetime | None = field(default=None, compare=False)

    @property
    def account(self) -> BudgetAccount:
        """Its account, of which nothing was spent."""
        scope = BudgetScope.TENANT if self.user_id is None else BudgetScope.USER
        subject = self.user_id or ""
        return BudgetAccount(
            budget_id(self.tenant_id, scope, subject, "", self.unit),
            self.tenant_id,
            self.unit,
            scope,
            subject,
            self.limit,
            on_exhausted=self.on_exhausted,
            degrade_to=self.degrade_to,
        )
