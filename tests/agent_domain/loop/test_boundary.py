"""What decisions have read, as it is stored."""

from decimal import Decimal
from uuid import UUID

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.budget import BudgetScope, BudgetUnit, ExhaustedBudget


def test_a_boundary_is_written_without_usual_values() -> None:
    """15.2.2"""
    assert Boundary(1.5, 0.5).to_dict() == {"elapsed_seconds": 1.5, "worked_seconds": 0.5}


def test_a_boundary_is_read_as_it_was_written() -> None:
    """15.2.2"""
    amounts = (Decimal("0.25"), Decimal(0), Decimal(0), Decimal("0.5"))
    budget = ExhaustedBudget(UUID(int=1), BudgetUnit.USD, BudgetScope.USER, *amounts)
    boundary = Boundary(1.5, 0.5, 2, budget)
    assert Boundary.from_dict({**boundary.to_dict(), "later": 1}) == boundary


def test_a_broken_boundary_is_refused() -> None:
    """15.2.5"""
    with pytest.raises(InvalidInput):
        Boundary.from_dict({"worked_seconds": 1.0})
