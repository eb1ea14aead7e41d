"""What is changed of a recorded plan, and how people write it."""

from decimal import Decimal

import pytest

from everstep.agent_domain.agents.plan import CriterionRef, CumulativeTimeout
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.budget import Budget, BudgetUnit
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.pricing.prices import Prices
from everstep.agent_domain.values import frozen_map
from everstep.agent_domain.what_if.policy_change import PolicyChange, parse_criterion, parse_price
from tests.scenarios import base


def retry_limit(failures: int) -> CriterionRef:
    return CriterionRef(name="RetryLimit", params=frozen_map({"max_failures": failures}))


class TestChangedPlans:
    def test_what_is_not_named_stays(self) -> None:
        """15.2.4"""
        plan = base(timeout_seconds=9, criteria=(retry_limit(3),))
        assert PolicyChange().changed(plan) == plan
        assert not PolicyChange(prices={"m": Prices(Decimal(1), Decimal(2))}).changes_decisions

    def test_one_time_limit_replaces_the_other(self) -> None:
        """15.2.4: a plan has one."""
        worked = base(cumulative_timeout=CumulativeTimeout(seconds=5, scope="session"))
        wall = PolicyChange(timeout_seconds=7).changed(worked)
        assert (wall.timeout_seconds, wall.cumulative_timeout) == (7, None)
        other = PolicyChange(cumulative_timeout_seconds=8).changed(worked)
        assert other.cumulative_timeout == CumulativeTimeout(seconds=8, scope="session")

    def test_retries_apply_to_the_recorded_error_policy_or_to_the_named_one(self) -> None:
        """15.2.4"""
        plan = base(error_policy=ErrorPolicy.retry_all(2))
        assert PolicyChange(max_retries=7).changed(plan).error_policy == ErrorPolicy.retry_all(7)
        named = PolicyChange(error_policy="retry_tool_errors", max_retries=1).changed(plan)
        assert named.error_policy == ErrorPolicy.retry_tool_errors(1)

    def test_a_criterion_replaces_that_of_its_name(self) -> None:
        """15.2.4"""
        plan = base(criteria=(retry_limit(3), CriterionRef(name="ErrorPresenceCheck")))
        changed = PolicyChange(criteria=(retry_limit(1),)).changed(plan)
        assert changed.criteria == (CriterionRef(name="ErrorPresenceCheck"), retry_limit(1))

    def test_criteria_are_left_out_by_name_also_those_of_the_base_set(self) -> None:
        """15.2.4"""
        plan = base(criteria=(CriterionRef(name="tests.at-most-one-failure"), retry_limit(3)))
        changed = PolicyChange(without_criteria=("at-most-one-failure", "StepsLimit")).changed(plan)
        assert (changed.criteria, changed.max_steps) == ((retry_limit(3),), None)


class TestRefusals:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_steps": 0},
            {"max_tokens": -1},
            {"repeated_call_limit": 0},
            {"timeout_seconds": 0},
            {"cumulative_timeout_seconds": float("nan")},
            {"max_retries": -1},
            {"budgets": (Budget(BudgetUnit.STEPS, Decimal(0)),)},
        ],
        ids=str,
    )
    def test_limits_of_zero_or_less_are_refused(self, wrong: dict[str, object]) -> None:
        """15.2.5"""
        with pytest.raises(InvalidInput):
            PolicyChange(**wrong)  # type: ignore[arg-type]

    def test_unknown_names_are_refused_with_the_nearest(self) -> None:
        """15.2.5"""
        with pytest.raises(UnknownName, match="did you mean 'retry_tool_errors'"):
            PolicyChange(error_policy="retry_tools_errors")
        with pytest.raises(UnknownName, match="did you mean 'RetryLimit'"):
            PolicyChange(criteria=(CriterionRef(name="RetryLimits"),)).require_known_criteria()
        with pytest.raises(UnknownName, match="did you mean 'StepsLimit'"):
            PolicyChange(without_criteria=("StepLimit",)).require_known_criteria()

    def test_parameters_that_do_not_fit_are_refused(self) -> None:
        """15.2.5"""
        with pytest.raises(InvalidInput, match="do not fit"):
            PolicyChange(criteria=(CriterionRef(name="RetryLimit"),)).require_known_criteria()

    def test_a_criterion_that_every_plan_needs_cannot_be_left_out(self) -> None:
        """15.2.5"""
        with pytest.raises(InvalidInput, match="every plan needs"):
            PolicyChange(without_criteria=("ErrorPolicyCriterion",)).require_known_criteria()


class TestWrittenForms:
    @pytest.mark.parametrize(
        ("text", "name", "params"),
        [
            ("ErrorPresenceCheck", "ErrorPresenceCheck", {}),
            ("RetryLimit:max_failures=2", "RetryLimit", {"max_failures": 2}),
            ("own: a=yes, b=1.5", "own", {"a": "yes", "b": 1.5}),
            (
                'FinishReasonCheck:{"reasons":["length","stop"]}',
                "FinishReasonCheck",
                {"reasons": ["length", "stop"]},
            ),
        ],
    )
    def test_criteria_are_read_with_their_parameters(
        self, text: str, name: str, params: dict[str, object]
    ) -> None:
        """15.2.4"""
        assert parse_criterion(text) == CriterionRef(name=name, params=frozen_map(params))

    @pytest.mark.parametrize("text", ["", ":a=1", "RetryLimit:2", "RetryLimit:{"])
    def test_other_forms_are_refused(self, text: str) -> None:
        """15.2.5"""
        with pytest.raises(InvalidInput):
            parse_criterion(text)

    def test_prices_are_read_for_presets_and_models(self) -> None:
        """15.2.4"""
        assert parse_price("openai:gpt-5.5:input=2.5,output=15") == (
            "openai:gpt-5.5",
            Prices(Decimal("2.5"), Decimal(15)),
        )

    @pytest.mark.parametrize(
        "text",
        ["small", "small:input=1", "small:input=1,outputs=2", "small:input=-1,output=2", ":input=1,output=2"],
    )
    def test_incomplete_prices_are_refused(self, text: str) -> None:
        """15.2.5"""
        with pytest.raises(InvalidInput):
            parse_price(text)
