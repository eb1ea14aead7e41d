"""The command that repeats decisions under another policy."""

import csv
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from sqlalchemy import text

from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = (
    *("examined", "ended_earlier", "ended_later", "undetermined", "differing", "tokens_saved"),
    "not_ended",
    *("cost_saved", "seconds_saved", "executions", "next_cursor"),
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

    header, line = csv.reader((await desk.run_command(*options, "--csv")).stdout.splitlines())
    assert dict(zip(header, line, strict=True))["id"] == name

    of_one = ("what-if", "--execution", name, "--json")
    assert json.loads(await desk.output_of(*of_one))["examined"] == 1
    lines = await desk.output_of(*options)
    assert f"{name}  clerk  earlier       after step 0: stopped: the step limit was reached" in lines
    assert "ended earlier  1\n" in lines
    page = await desk.output_of("--color", "always", *options, COLUMNS="100")
    assert re.search(rf"{name}  clerk .* 0 .*stopped: the step limit", page), page
    assert "ended earlier" in page


COPY = text("""
    WITH copies AS (
        SELECT gen_random_uuid() AS id FROM generate_series(1, :count)
    ), made AS (
        INSERT INTO agent_executions
        SELECT (jsonb_populate_record(run, jsonb_build_object('id', copies.id, 'agent_type', 'copied'))).*
          FROM agent_executions run, copies
         WHERE run.id = :id
     RETURNING id
    )
    INSERT INTO agent_steps
    SELECT (jsonb_populate_record(step, jsonb_build_object('execution_id', made.id))).*
      FROM agent_steps step, made
     WHERE step.execution_id = :id
""")


@asynccontextmanager
async def open_copies(desk: CommandLine, count: int) -> AsyncGenerator[None]:
    """So many copies of an execution that has ended, of the agent `copied`."""
    name = await run_to_its_end(desk)
    engine = desk.installation.store.engine
    async with engine.begin() as connection:
        await connection.execute(COPY, {"id": UUID(name), "count": count})
    try:
        yield
    finally:
        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM agent_executions WHERE agent_type = 'copied'"))


async def test_a_person_sees_how_far_it_is_and_ctrl_c_says_what_was_done_and_how_to_go_on(
    desk: CommandLine,
) -> None:
    """15.2.8"""
    async with open_copies(desk, 150):
        agents = ("--agents", "tests.everstep.cli.patient_agents:agents")
        slow = ("what-if", "--agent", "copied", "--criterion", "tests.patient", *agents)
        async with desk.open_terminal(*slow, columns=100) as terminal:
            await terminal.wait_for(" left")
            terminal.type("\x03")
            assert await terminal.end() == 130, terminal.text
        assert re.search(r"\[#* +\] +\d+%  \d+ of 150 executions, \S+ s left", terminal.text), terminal.text
        done = re.search(r"Cancelled: (\d+) of 150 executions were examined", terminal.text)
        cursor = re.search(r"repeat it with --cursor (\S+)", terminal.text)
        assert done, terminal.text
        assert cursor, terminal.text
        assert re.search(rf"examined +{done[1]} executions", terminal.text), terminal.text
        assert terminal.is_clean

        rest = json.loads(
            await desk.output_of("what-if", "--agent", "copied", "--cursor", cursor[1], "--json")
        )
        assert rest["examined"] == 150 - int(done[1])


async def test_a_limit_says_where_the_next_part_begins(desk: CommandLine) -> None:
    """15.2.8"""
    async with open_copies(desk, 3):
        some = await desk.run_command("what-if", "--agent", "copied", "--limit", 2)
        assert "examined       2 executions" in some.stdout
        (cursor,) = re.findall(r"more: --cursor (\S+)\n", some.stderr)
        report = json.loads(
            await desk.output_of("what-if", "--agent", "copied", "--cursor", cursor, "--json")
        )
        assert (report["examined"], report["next_cursor"]) == (1, None)


async def test_bad_input_is_refused_in_one_sentence(desk: CommandLine) -> None:
    """15.2.5"""
    error = await desk.error_of("what-if", "--error-policy", "retry_al")
    assert "did you mean 'retry_all'" in error
    error = await desk.error_of("what-if", "--criterion", "RetryLimt:max_failures=1")
    assert "did you mean 'RetryLimit'" in error
    assert "above 0" in await desk.error_of("what-if", "--budget-steps", "0")
    assert "input and output" in await desk.error_of("what-if", "--price", "small:input=1")
    for form in ("--json", "--csv"):
        assert "the cursor cannot be read" in await desk.error_of("what-if", form, "--cursor", "nonsense")
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
