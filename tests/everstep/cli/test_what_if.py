"""The command that repeats decisions under another policy."""

import csv
import json

import pytest

from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = (
    *("examined", "ended_earlier", "ended_later", "undetermined", "differing", "tokens_saved"),
    *("cost_saved", "seconds_saved", "executions"),
)


async def run_to_its_end(desk: CommandLine) -> str:
    """The id of an execution that has ended."""
    execution = await desk.client.start("clerk", "hello")
    await execution.result()
    return str(execution.id)


async def test_the_recorded_policy_makes_no_difference(desk: CommandLine) -> None:
    """15.2.2: all decisions that tests of commands recorded are reproduced."""
    await run_to_its_end(desk)
    report = json.loads(await desk.output_of("what-if", "--json"))
    assert sorted(report) == sorted(KEYS)
    assert report["examined"] >= 1
    assert (report["differing"], report["undetermined"], report["executions"]) == (0, 0, [])
    assert all(type(report[key]) is int for key in KEYS[:6])


async def test_a_run_that_parts_is_shown_as_table_json_and_csv(desk: CommandLine) -> None:
    """15.2.1"""
    name = await run_to_its_end(desk)
    options = ("what-if", "--agent", "clerk", "--limit", "1", "--criterion", "StepsLimit:max_steps=0")
    report = json.loads(await desk.output_of(*options, "--json"))
    assert (report["examined"], report["ended_earlier"]) == (1, 1)
    (run,) = report["executions"]
    assert (run["id"], run["parts_at_step"], run["would_stop_by"]) == (name, 0, "steps_limit")

    header, line = csv.reader((await desk.output_of(*options, "--csv")).splitlines())
    assert dict(zip(header, line, strict=True))["id"] == name

    table = await desk.output_of(*options)
    assert f"{name}  clerk  earlier       after step 0: StepsLimit ends it" in table
    assert "ended earlier  1\n" in table


async def test_bad_input_is_refused_in_one_sentence(desk: CommandLine) -> None:
    """15.2.5"""
    error = await desk.error_of("what-if", "--error-policy", "retry_al")
    assert "did you mean 'retry_all'" in error
    error = await desk.error_of("what-if", "--criterion", "RetryLimt:max_failures=1")
    assert "did you mean 'RetryLimit'" in error
    assert "above 0" in await desk.error_of("what-if", "--budget-steps", "0")
    assert "input and output" in await desk.error_of("what-if", "--price", "small:input=1")
    for option in ("--max-steps", "--max-tokens", "--timeout", "--limit", "--repeated-call-limit"):
        assert option in await desk.usage_error_of("what-if", option, "0")
    assert "exclude" in await desk.usage_error_of("what-if", "--json", "--csv")
    assert "since must be earlier" in await desk.error_of(
        "what-if", "--since", "2026-01-02", "--until", "2026-01-01"
    )


async def test_a_filter_without_a_match_says_so(desk: CommandLine) -> None:
    """15.2.1"""
    said = await desk.output_of("what-if", "--agent", "nobody-of-this-name")
    assert "No executions match." in said
