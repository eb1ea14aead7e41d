"""Budgets as people write them: as arguments of the builder, in agent files and in requests."""

from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.budget import Budget, BudgetScope, BudgetUnit, OnExhausted
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import enum_member, type_name, valid_text

MOST: Final = 10**12
"""No budget is larger: in any unit that is a mistake."""

_OTHER_KEYS = ("on_exhausted", "scope", "degrade_to")
KEYS: Final = (*BudgetUnit, *_OTHER_KEYS)


def parse_budgets(given: Mapping[str, Any], where: str) -> tuple[Budget, ...]:
    """Read a budget: its amounts by unit, and `on_exhausted`, `scope` and `degrade_to`.

    Args:
        given: The values by key; a value of None is left out.
        where: What the budget is called in error messages.

    Returns:
        One budget for each unit.

    Raises:
        InvalidInput: A value cannot be used, or there is no amount.
    """
    for name in given:
        if name not in KEYS:
            raise InvalidInput(f"{where} has no '{name}'; it has {', '.join(KEYS)}{did_you_mean(name, KEYS)}")
    present = {name: value for name, value in given.items() if value is not None}
    limits = {unit: parse_amount(unit, present[unit], where) for unit in BudgetUnit if unit in present}
    if not limits:
        raise InvalidInput(f"{where} has no amount; pass usd, tokens or steps")
    on_exhausted = enum_member(
        OnExhausted, present.get("on_exhausted", OnExhausted.STOP), f"{where}: on_exhausted"
    )
    scope = enum_member(BudgetScope, present.get("scope", BudgetScope.EXECUTION), f"{where}: scope")
    cheaper = _cheaper_preset(present.get("degrade_to"), on_exhausted, where)
    if on_exhausted is OnExhausted.DEGRADE and BudgetUnit.STEPS in limits:
        raise InvalidInput(
            f"{where}: a cheaper preset takes as many steps; for a budget in steps use "
            "on_exhausted='stop' or 'ask'"
        )
    return tuple(Budget(unit, limit, scope, on_exhausted, cheaper) for unit, limit in limits.items())


def parse_total(given: Mapping[str, Any]) -> Budget:
    """Read the new total of one budget.

    Raises:
        InvalidInput: There is not exactly one amount, or it cannot be used.
    """
    total, *others = parse_budgets(given, "the new total")
    if others:
        raise InvalidInput("pass one new total: usd, tokens or steps")
    return total


def parse_amount(unit: BudgetUnit, value: object, where: str) -> Decimal:
    """Read an amount: dollars with any number of digits, or a whole number of tokens or steps.

    Raises:
        InvalidInput: It is negative, too large, or no number of this kind.
    """
    kind = "dollars" if unit is BudgetUnit.USD else f"a whole number of {unit}"
    kinds = (int, float, Decimal) if unit is BudgetUnit.USD else (int,)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not isfinite(cast("float", value)) or not 0 <= cast("float", value) <= MOST:
        raise InvalidInput(f"{where}: {unit} is {value!r}; pass {kind}, from 0 to {MOST:,}")
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _cheaper_preset(value: object, on_exhausted: OnExhausted, where: str) -> str | None:
    if on_exhausted is not OnExhausted.DEGRADE:
        if value is not None:
            raise InvalidInput(f"{where}: degrade_to needs on_exhausted='degrade'")
        return None
    if not isinstance(value, str | None):
        raise InvalidInput(f"{where}: degrade_to is a {type_name(value)}; pass the name of a preset")
    if value is None or not valid_text(value, f"{where}: degrade_to").strip():
        raise InvalidInput(f"{where}: on_exhausted='degrade' needs degrade_to, the cheaper preset or model")
    return value.strip()
