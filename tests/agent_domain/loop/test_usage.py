"""Token usage: counted once, and written in three forms."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.usage import Usage, parse_usd
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool
from tests.agent_domain.scripted_model import ScriptedModel, a_call, run

counts = st.integers(0, 10**12)
usages = st.builds(Usage, counts, counts, counts, counts, counts)


@given(counts, counts, counts, counts, counts)
def test_the_total_is_the_sum_of_five_disjoint_counters(a: int, b: int, c: int, d: int, e: int) -> None:
    """4.2.1: for any numbers."""
    usage = Usage(input=a, output=b, cache_write=c, cache_read=d, reasoning=e)

    assert usage.total == a + b + c + d + e
    assert usage.cached == c + d


@given(usages, usages, usages)
def test_usage_adds_up_counter_by_counter(one: Usage, two: Usage, three: Usage) -> None:
    """4.2.1"""
    both = one + two

    assert both.to_dict() == {key: one.to_dict()[key] + two.to_dict()[key] for key in one.to_dict()}
    assert both.total == one.total + two.total
    assert (one + two) + three == one + (two + three)
    assert one + Usage() == one


@pytest.mark.parametrize("counter", ["input", "output", "cache_write", "cache_read", "reasoning"])
@pytest.mark.parametrize("value", [-1, 1.5, "7", True, None])
def test_a_counter_is_a_whole_number(counter: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"usage counts whole tokens; {counter} is {value!r}"):
        Usage(**{counter: value})


def test_the_wire_form_counts_reasoning_into_completion() -> None:
    """4.2: input 100, output 40, cache read 30, reasoning 10."""
    usage = Usage(input=100, output=40, cache_read=30, reasoning=10)

    assert usage.to_wire() == {
        "prompt": 100,
        "completion": 50,
        "total": 180,
        "cached": 30,
        "reasoning": 10,
    }
    assert list(usage.to_wire()) == ["prompt", "completion", "total", "cached", "reasoning"]


def test_the_databases_form_shares_no_token() -> None:
    """4.2"""
    usage = Usage(100, 40, 5, 30, 10)

    assert usage.to_breakdown() == {
        "input": 100,
        "output": 40,
        "cached": 35,
        "reasoning": 10,
        "total": 185,
    }


@given(usages)
def test_every_form_can_be_read(usage: Usage) -> None:
    """4.2: our own loses nothing; the others do not distinguish writing to a cache from reading."""
    merged = Usage(usage.input, usage.output, 0, usage.cached, usage.reasoning)

    assert Usage.from_dict(usage.to_dict()) == usage
    assert Usage.from_dict(usage.to_wire()) == merged
    assert Usage.from_dict(usage.to_breakdown()) == merged


@pytest.mark.parametrize(
    ("data", "usage"),
    [
        (None, Usage()),
        ({}, Usage()),
        ({"prompt": 10, "completion": 7, "reasoning": 2}, Usage(input=10, output=5, reasoning=2)),
        ({"completion": 7}, Usage(output=7)),
        ({"completion": 2, "reasoning": 7}, Usage(output=0, reasoning=7)),
        ({"input": 1, "prompt": 10, "output": 2, "completion": 20, "reasoning": 5}, Usage(1, 2, reasoning=5)),
        ({"input": 0, "prompt": 10, "output": 0, "completion": 20}, Usage()),
        ({"input": None, "prompt": 10, "output": None, "completion": 20}, Usage(10, 20)),
        ({"cache_write": 3, "cache_read": 4}, Usage(cache_write=3, cache_read=4)),
        ({"cacheWrite": 3, "cacheRead": 4}, Usage(cache_write=3, cache_read=4)),
        ({"cached": 9}, Usage(cache_read=9)),
        ({"cached": 9, "cache_read": None}, Usage(cache_read=9)),
        ({"cached": 7, "cacheWrite": 3, "cacheRead": 4}, Usage(cache_write=3, cache_read=4)),
        ({"input": 3, "total": 99}, Usage(input=3)),
        ({"total": 99}, Usage(input=99)),
        ({"token_usage": 10}, Usage(input=10)),
        ({"token_usage": 10, "token_breakdown": None}, Usage(input=10)),
        (
            {"token_usage": 10, "token_breakdown": {"input": 3, "output": 4, "cached": 1, "reasoning": 2}},
            Usage(3, 4, cache_read=1, reasoning=2),
        ),
        ({"total": 99, "input": None, "cost": 0.2}, Usage(input=99)),
        ({"cost": 0.2}, Usage()),
    ],
)
def test_foreign_forms_are_read(data: dict[str, Any] | None, usage: Usage) -> None:
    """4.2: input and output win, cached alone is cache read, the total is recomputed."""
    assert Usage.from_dict(data) == usage


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"prompt": -1}, "prompt is -1"),
        ({"cached": 1.5}, "cached is 1.5"),
        ({"completion": "many"}, "completion is 'many'"),
        ({"total": True}, "total is True"),
        ([1], "usage must be a map, not list"),
    ],
)
def test_invalid_counts_are_refused(data: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Usage.from_dict(data)


async def test_usage_grows_once_for_each_step_failed_ones_too() -> None:
    """4.2.1: two calls in a step do not count it twice; a step without a response adds nothing."""
    model = ScriptedModel(
        InferenceResponse("", (a_call("c1"), a_call("c2", "nowhere")), usage=Usage(10, 1)),
        ModelError("overloaded"),
        InferenceResponse("done", usage=Usage(20, 2)),
    )

    state = await run(
        ToolCallingDriver(model),
        [MockTool("weather")],
        lambda builder: builder.with_error_policy(ErrorPolicy.retry_all()),
    )

    assert [step.usage for step in state.steps] == [Usage(10, 1), Usage(), Usage(20, 2)]
    assert [step.has_errors for step in state.steps] == [True, True, False]
    assert state.usage == Usage(30, 3)


def test_the_cost_of_several_calls_is_their_sum() -> None:
    """4.7.4"""
    one = Usage(input=10).with_cost(Decimal("0.1"))
    free = Usage(output=5).with_cost(Decimal(0))

    assert (one + free).cost_usd == Decimal("0.1")
    assert (one + Usage()).cost_usd == Decimal("0.1")
    assert Usage().cost_usd == 0


@pytest.mark.parametrize("unknown", [Usage(input=1), Usage(input=1).with_cost(None), Usage().with_cost(None)])
def test_one_unknown_cost_makes_the_sum_unknown(unknown: Usage) -> None:
    """4.7.4"""
    one = Usage(input=10).with_cost(Decimal("0.1"))

    assert (one + unknown).cost_usd is None
    assert (unknown + one).cost_usd is None
    assert (one + unknown).known_cost_usd == Decimal("0.1")
    assert Usage.from_dict((one + unknown).to_dict()).cost_usd is None


def test_a_cost_is_read_as_it_was_written() -> None:
    """4.7.4"""
    usage = Usage(input=10, output=3).with_cost(Decimal("0.000000000001"))

    assert Usage.from_dict(usage.to_dict()).cost_usd == Decimal("0.000000000001")
    assert Usage(input=10).to_dict().keys() == Usage().to_dict().keys()


@pytest.mark.parametrize("cost", [-1, "much", "nan", "inf", True, None, [1]])
def test_a_cost_is_an_amount(cost: Any) -> None:
    with pytest.raises(InvalidInput, match="a cost is an amount of US dollars"):
        parse_usd(cost)
