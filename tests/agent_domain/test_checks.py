from time import process_time

import pytest
from pydantic import ValidationError

from everstep.agent_domain.checks import (
    StrictModel,
    faults,
    require_finite,
    require_integer,
    require_integer_at_least,
)
from everstep.agent_domain.errors import InvalidInput


@pytest.mark.parametrize("value", [0, -3, 1.5, True, "2", None])
def test_a_number_below_the_minimum_or_no_whole_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        require_integer_at_least("max_items", value, 1)
    assert str(refused.value) == f"max_items is {value!r}; pass a whole number of at least 1"


def test_the_minimum_itself_is_allowed() -> None:
    require_integer_at_least("max_items", 1, 1)


def test_any_whole_number_may_be_negative_but_not_broken() -> None:
    require_integer("every", -1)
    with pytest.raises(InvalidInput, match=r"every is 1.5; pass a whole number"):
        require_integer("every", 1.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "5", None])
def test_a_number_that_is_not_finite_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"timeout is .*; pass a finite number"):
        require_finite("timeout", value)


def test_a_finite_number_is_allowed() -> None:
    require_finite("timeout", 0.5)


class Sent(StrictModel):
    """A model that people write."""

    content: str = ""


def test_thousands_of_unknown_keys_are_refused_at_once() -> None:
    """A suggestion for each would take seconds."""
    before = process_time()
    with pytest.raises(ValidationError) as refused:
        Sent.model_validate({"contents": 1} | {f"k{number}": number for number in range(20_000)})
    assert process_time() - before < 1
    assert "there is no such key; choose from: content" in faults(refused.value)
