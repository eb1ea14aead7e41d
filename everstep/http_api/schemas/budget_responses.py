"""Response models of the budgets that operators set."""

from typing import Self

from pydantic import Field

from everstep.agent_domain.loop.budget import BudgetScope
from everstep.agent_domain.storage.budget_ledger import BudgetAccount
from everstep.http_api.schemas.execution_responses import BudgetResponse
from everstep.http_api.schemas.text import ResponseModel


class OperatorBudgetResponse(BudgetResponse):
    """A budget of the tenant or of a user, with what was spent of it."""

    user_id: str | None = Field(description="The user; null for the budget of the tenant.")

    @classmethod
    def of(cls, account: BudgetAccount) -> Self:
        """Convert a budget."""
        user_id = account.subject if account.scope is BudgetScope.USER else None
        return cls(**BudgetResponse.of(account).model_dump(), user_id=user_id)


class Budgets(ResponseModel):
    """The budgets that the operator has set."""

    items: list[OperatorBudgetResponse]
