"""The subcommands, and their error messages."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

import click
import pytest
import sqlalchemy

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.state.state import AgentState
from everstep.cli import executions
from everstep.cli.follow import follow_lines
from everstep.cli.main import commands
from everstep.client.client import Execution
from everstep.store.sessions import PostgresSessions
from tests.acceptance.harness import Installation, until
from tests.everstep.cli.agents import hesitant
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNKNOWN = UUID(int=1)

# The texts sent to one execution, without its id.
ABOUT_ONE = (
    ("show",),
    ("trace",),
    ("because",),
    ("because", "--json"),
    ("follow",),
    ("retry",),
    ("answer", "high"),
    ("approve",),
    ("approve", "--deny"),
    ("steer", "Hurry"),
    ("cancel",),
    ("pause",),
    ("resume",),
)


def all_commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, *path, name)
        else:
            yield *path, name


# Help.


@pytest.mark.parametrize("path", [*all_commands(commands)], ids=" ".join)
async def test_every_command_has_a_help_text(desk: CommandLine, path: tuple[str, ...]) -> None:
    said = await desk.output_of(*path, "--help")

    usage, _, about = said.partition("\n\n")
    assert usage.startswith("Usage: ")
    assert about.strip().splitlines()[0].endswith((".", ",", ":"))


async def test_help_needs_no_installation(desk: CommandLine) -> None:
    assert "Durable AI agents" in await desk.output_of(
        "-h", DATABASE_URL="nonsense", TEMPORAL_ADDRESS="nonsense"
    )


# Starting and viewing.


async def test_a_run_shows_its_events_and_its_end(desk: CommandLine) -> None:
    said = await desk.output_of("run", "hello", "--agent", "clerk")

    assert said.startswith("step 1\n  model   Hello!\nexecution  ")
    assert "status     completed\n" in said
    assert "answer     Hello!" in said


@pytest.mark.parametrize(("default", "agent"), [(None, "clerk"), ("broken", "broken")])
async def test_a_run_without_an_agent_uses_the_default_agent(
    desk: CommandLine, default: str | None, agent: str
) -> None:
    """10.2.5"""
    execution = (await desk.output_of("run", "hello", "--detach", EVERSTEP_DEFAULT_AGENT=default)).strip()

    assert f"agent      {agent}\n" in await desk.output_of("show", execution)


async def test_a_detached_run_prints_only_its_id(desk: CommandLine) -> None:
    said = await desk.output_of("run", "hello", "--agent", "clerk", "--detach")

    execution = desk.client.execution(UUID(said.strip()))
    await execution.result()


async def test_a_run_in_debug_mode_keeps_its_states(desk: CommandLine) -> None:
    """8.1.3: the final one contains every step."""
    said = await desk.output_of("run", "shout", "--agent", "clerk", "--debug", "--detach")
    execution = desk.client.execution(UUID(said.strip()))
    result = await execution.result()

    page = await PostgresSessions(desk.installation.store.engine).snapshots(execution.ref)

    assert [row.step_number for row in page.rows] == [*range(result.steps, 0, -1)]
    assert [row.debug_mode for row in page.rows] == [True] * result.steps
    assert len(AgentState.from_dict(page.rows[0].state).steps) == result.steps > 1


async def test_a_failed_execution_fails_its_command(desk: CommandLine) -> None:
    result = await desk.run_command("run", "hello", "--agent", "broken")

    assert result.exit_code == 1
    assert "The model is on strike" in result.output
    assert "status     failed (error)" in result.output


async def test_an_execution_is_shown_with_its_steps(desk: CommandLine) -> None:
    execution = await desk.start_until_pause("pay")
    before = await desk.output_of("show", execution.id)
    await execution.approve()
    await execution.result()
    after = await desk.output_of("show", execution.id)

    assert "status     paused" in before
    assert f"definition {desk.client.agent('clerk').digest}" in before
    assert 'approval   transfer {"euros":80}' in before
    assert f"everstep approve {execution.id}" in before
    assert "  tool    transfer(euros: 80) -> transferred 80" in after
    assert "answer     It is done." in after
    assert "approval" not in after


async def test_two_executions_are_compared(desk: CommandLine) -> None:
    """15.4.1, 15.4.4: as lines, and as JSON."""
    one, other = [await desk.client.start("clerk", text) for text in ("shout", "hello")]
    await one.result()
    await other.result()

    lines = (await desk.output_of("diff", one.id, other.id)).splitlines()
    found = json.loads(await desk.output_of("diff", one.id, other.id, "--json"))

    assert lines[1].split() == ["execution", str(one.id), str(other.id)]
    assert lines[-1] == f"{found['differing_steps']} of {len(found['steps'])} steps differ"
    assert found == (await desk.client.diff(one.id, other.id)).to_dict()
    assert await desk.error_of("diff", one.id, UNKNOWN) == f"There is no execution {UNKNOWN}"


async def test_a_ledger_is_printed_and_audited(desk: CommandLine) -> None:
    """15.7.4, 15.7.6: a changed row is found, and ends the command with 1."""
    execution = await desk.client.start("clerk", "shout")
    await execution.result()

    lines = [json.loads(line) for line in (await desk.output_of("ledger", execution.id)).splitlines()]
    period = (await desk.output_of("ledger", "--since", "2020-01-01")).splitlines()
    whole = await desk.output_of("audit", execution.id)
    async with desk.installation.store.engine.connect() as connection:
        changed = "UPDATE agent_tool_calls SET text = 'nothing' WHERE execution_id = :id"
        await connection.execute(sqlalchemy.text(changed), {"id": execution.id})
    broken = await desk.run_command("audit", execution.id)
    report = json.loads((await desk.run_command("audit", execution.id, "--json")).output)
    all_of_them = await desk.run_command("audit", "--all")

    assert (lines[0]["kind"], lines[-1]["kind"]) == ("accepted", "ended")
    assert {line["hash"] for line in lines} <= {json.loads(line)["hash"] for line in period}
    assert "result     whole" in whole
    assert broken.exit_code == all_of_them.exit_code == 1
    assert "BROKEN: 1 place differs" in broken.output
    assert (report["whole"], [each["kind"] for each in report["breaks"]]) == (False, ["called"])
    assert str(execution.id) in all_of_them.output
    usage = await desk.run_command("audit")
    assert "name one execution, or pass --all, --since or --tenant" in usage.output
    assert await desk.error_of("audit", UNKNOWN) == f"There is no execution {UNKNOWN}"
    assert await desk.error_of("ledger", UNKNOWN) == f"There is no execution {UNKNOWN}"


async def test_a_trace_shows_who_decided(desk: CommandLine) -> None:
    execution = await desk.client.start("clerk", "shout")
    await execution.result()

    said = await desk.output_of("trace", execution.id, "--votes")

    assert "  another step, decided by ToolCallPresenceCheck" in said
    assert "  stop: completed, decided by ToolCallPresenceCheck" in said
    assert "    allow   StepsLimit: StepsLimit does not object to another step" in said


async def test_a_because_says_why_each_step_was_followed_by_another(desk: CommandLine) -> None:
    """15.1.7: in lines, and as the body of the HTTP API."""
    execution = await desk.client.start("clerk", "shout")
    await execution.result()
    ended = "completed: the model answered without calling tools"

    said = await desk.output_of("because", execution.id)
    body = json.loads(await desk.output_of("because", execution.id, "--json"))

    assert said.splitlines()[0] == ended
    assert "step 1\n  went on: the model called 1 tool: shout\n" in said
    assert f"step 2\n  {ended}\n" in said
    assert body["because"] == ended
    assert [step["number"] for step in body["steps"]] == [1, 2]


async def test_tool_output_cannot_control_the_terminal(desk: CommandLine) -> None:
    said = await desk.output_of("run", "shout", "--agent", "clerk")

    assert "boo" in said
    assert "\x1b" not in said


async def test_executions_are_listed_page_by_page(desk: CommandLine) -> None:
    started = [await desk.client.start("clerk", "hello") for _ in range(3)]
    for execution in started:
        await execution.result()

    first = (await desk.output_of("executions", "--limit", 2)).splitlines()
    cursor = first[2].removeprefix("more: --cursor ")
    second = (await desk.output_of("executions", "--limit", 1, "--cursor", cursor)).splitlines()

    assert [line.split()[0] for line in (*first[:2], second[0])] == [str(e.id) for e in reversed(started)]
    assert first[0].split()[1:5] == ["completed", "clerk", "1", "steps"]


async def test_executions_are_listed_by_status(desk: CommandLine) -> None:
    execution = await desk.start_until_pause("choose")

    listed = (await desk.output_of("executions", "--status", "paused", "--limit", 500)).splitlines()
    await execution.cancel()
    await execution.result()
    cancelled = (await desk.output_of("executions", "--status", "cancelled", "--limit", 500)).splitlines()

    assert str(execution.id) in {line.split()[0] for line in listed}
    assert {line.split()[1] for line in listed} == {"paused"}
    assert str(execution.id) in {line.split()[0] for line in cancelled}


# Requests.


async def test_a_question_is_answered(desk: CommandLine) -> None:
    """8.5.3"""
    execution = await desk.start_until_pause("choose")

    assert await desk.output_of("answer", execution.id, "high") == "answered: Which floor?\n"

    await execution.result()
    assert "-> high" in await desk.output_of("show", execution.id)


async def test_an_invalid_answer_changes_nothing(desk: CommandLine) -> None:
    """8.5.4"""
    execution = await desk.start_until_pause("choose")

    assert await desk.error_of("answer", execution.id, "middle") == "Answer must be one of: high, low"
    assert await desk.error_of("answer", execution.id, "") == "Answer must be one of: high, low"
    assert (await execution.get()).status is ExecutionStatus.PAUSED
    await execution.cancel()


async def test_a_subagents_question_is_shown_with_the_execution_to_answer(desk: CommandLine) -> None:
    """8.4.1: run, follow and show print the request for which an execution is paused."""
    execution = await desk.start_until_pause("delegate")
    (aide,) = await execution.subagents()
    following = asyncio.create_task(_lines(execution))

    question = await desk.output_of("show", execution.id)
    assert (
        f"question   Which floor?\nchoices    high, low\n           everstep answer {aide.id} TEXT\n"
        in question
    )
    await desk.output_of("answer", aide.id, "high")
    await until("the aide asks whether it may pay", lambda: _has_open_request(execution, CallNeed.APPROVAL))
    approval = f'approval   transfer {{"euros":80}}\n           everstep approve {aide.id} [--deny]\n'
    assert approval in await desk.output_of("show", execution.id)
    await desk.output_of("approve", aide.id)

    followed = await following
    assert approval in followed
    assert "[Subagent: aide] It is done." in followed
    assert await execution.requests_of_all() == []


async def _lines(execution: Execution) -> str:
    """The output of `everstep follow`; the test runner of click runs one command at a time."""
    async with aclosing(follow_lines(execution)) as lines:
        return "".join([f"{line}\n" async for line in lines])


async def _has_open_request(execution: Execution, need: CallNeed) -> bool:
    return [request.kind for request in await execution.requests_of_all()] == [need]


async def test_a_form_is_filled_in(desk: CommandLine) -> None:
    """8.5.3"""
    execution = await desk.start_until_pause("fill in")

    await desk.output_of("answer", execution.id, "--data", '{"day":"Friday"}')

    await execution.result()
    assert '-> {"day":"Friday"}' in await desk.output_of("show", execution.id)


async def test_a_call_is_approved_with_its_shown_digest(desk: CommandLine) -> None:
    """8.6.2"""
    execution = await desk.start_until_pause("pay")

    assert await desk.output_of("approve", execution.id) == 'approved: transfer {"euros":80}\n'

    await execution.result()
    assert "-> transferred 80" in await desk.output_of("show", execution.id)


async def test_a_call_is_denied_with_a_reason(desk: CommandLine) -> None:
    """8.6.2"""
    execution = await desk.start_until_pause("pay")

    said = await desk.output_of("approve", execution.id, "--deny", "--reason", "too much")

    assert said == 'denied: transfer {"euros":80}\n'
    await execution.result()
    assert "-> Denied by user: too much" in await desk.output_of("show", execution.id)


async def test_a_call_is_approved_with_other_arguments(desk: CommandLine) -> None:
    """8.6.2"""
    execution = await desk.start_until_pause("pay")

    await desk.output_of("approve", execution.id, "--args", '{"euros":8}')

    await execution.result()
    shown = await desk.output_of("show", execution.id)
    assert '[Arguments edited by user: {"euros":8}]' in shown
    assert "transferred 8\n" in shown


async def test_invalid_arguments_and_contradictory_options_decide_nothing(desk: CommandLine) -> None:
    """8.6.2"""
    execution = await desk.start_until_pause("pay")

    for given, complaint in (
        ("{", "--args is not valid JSON"),
        ("", "--args is not valid JSON"),
        ("[1]", "--args"),
        ("{}", "Required arguments are missing: euros"),
    ):
        assert complaint in await desk.error_of("approve", execution.id, "--args", given)
        assert len(await execution.requests()) == 1
    for options, complaint in (
        (("--deny", "--args", "{}"), "exclude each other"),
        (("--reason", "too much"), "--reason requires --deny"),
        (("--deny", "--remember"), "omit --deny and --args"),
        (("--args", "{}", "--remember"), "omit --deny and --args"),
        (("--where", "euros=8*"), "--where requires --remember"),
        (("--remember", "--where", "euros"), "'euros' is not ARG=GLOB"),
    ):
        assert complaint in await desk.usage_error_of("approve", execution.id, *options)
        assert len(await execution.requests()) == 1
    await execution.cancel()


async def test_an_approval_is_remembered(desk: CommandLine) -> None:
    """8.6.4"""
    execution = await desk.start_until_pause("pay")
    assert "does not match the call" in await desk.error_of(
        "approve", execution.id, "--remember", "--where", "euros=9*"
    )

    assert await desk.output_of("approve", execution.id, "--remember", "--where", "euros=8*")

    await execution.result()
    assert "-> transferred 80" in await desk.output_of("show", execution.id)


async def test_an_approval_is_used_once(desk: CommandLine) -> None:
    """8.6.3"""
    execution = await desk.start_until_pause("pay")
    await desk.output_of("approve", execution.id)
    await execution.result()

    assert await desk.error_of("approve", execution.id) == "No approval is open"
    assert await desk.error_of("answer", execution.id, "high") == "No question is open"


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_an_execution_is_steered_paused_and_resumed(desk: CommandLine) -> None:
    """8.3.1, 8.4.1"""
    execution = await desk.client.start("hesitant", "Think")

    async def thinks() -> bool:
        return bool(await execution.steps())

    await until("it thinks", thinks)
    await desk.output_of("pause", execution.id)
    await desk.output_of("steer", execution.id, "Never mind")
    hesitant.go_on.set()

    async def is_paused() -> bool:
        return (await execution.get()).status is ExecutionStatus.PAUSED

    await until("it is paused", is_paused)
    await desk.output_of("resume", execution.id)
    await execution.result()
    assert hesitant.heard == ["Think", "Let me think about it.", "Never mind"]
    assert "answer     Fine." in await desk.output_of("show", execution.id)


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_an_execution_is_cancelled(desk: CommandLine) -> None:
    """8.2.1"""
    execution = await desk.client.start("hesitant", "Think")

    await desk.output_of("cancel", execution.id)

    await execution.result()
    assert "status     cancelled (user_requested)" in await desk.output_of("show", execution.id)
    ended = f"The execution {execution.id} has ended as cancelled"
    for act in (("cancel",), ("pause",), ("resume",), ("steer", "Hurry")):
        assert await desk.error_of(act[0], execution.id, *act[1:]) == ended
    assert (await desk.run_command("follow", execution.id)).exit_code == 1


async def test_without_a_worker_no_command_waits_for_ever(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.1, 8.2.9: messages are stored, and an execution cancelled without a worker never starts."""
    monkeypatch.setattr(executions, "WORKER_SECONDS", 0.5)
    desk = CommandLine(installation, "deaf")
    execution = await desk.client.start("clerk", "hello")

    for act in (("pause",), ("steer", "Hurry")):
        complaint = await desk.error_of(act[0], execution.id, *act[1:])
        assert complaint.startswith("no worker answered within 0.5 seconds: `everstep doctor` checks")
        assert complaint.endswith("do not repeat the command")
    cancelled = await desk.output_of("cancel", execution.id)

    assert cancelled == "no worker is available; the execution stops as soon as one is\n"
    async with desk.open_worker():
        await execution.result()
    row = await execution.get()
    assert (row.status, row.step_count) == (ExecutionStatus.CANCELLED, 0)


# Invalid input.


@pytest.mark.parametrize("command", ABOUT_ONE, ids=" ".join)
async def test_an_unknown_execution_is_reported(desk: CommandLine, command: tuple[str, ...]) -> None:
    name, *rest = command

    assert await desk.error_of(name, UNKNOWN, *rest) == f"There is no execution {UNKNOWN}"


@pytest.mark.parametrize("command", ABOUT_ONE, ids=" ".join)
async def test_an_invalid_id_is_refused_before_any_request(
    desk: CommandLine, command: tuple[str, ...]
) -> None:
    name, *rest = command
    nowhere = {"TEMPORAL_ADDRESS": "127.0.0.1:9", "DATABASE_URL": "postgresql://127.0.0.1:9/x"}

    for text in ("12", "", "x" * 100_000):
        complaint = await desk.error_of(name, text, *rest, **nowhere)
        assert "is not an execution id; `everstep executions` lists them" in complaint
        assert len(complaint) < 200


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "hello", "--agent", "nobody"), "No agent named 'nobody'. Choose from: clerk"),
        (("run", ""), "the message is empty; write some text"),
        (("run", " \n "), "the message is empty; write some text"),
        (("run", "\ud800"), "message text contains half of a surrogate pair; send valid Unicode"),
        (("steer", UNKNOWN, ""), "the message is empty; write some text"),
        (("answer", UNKNOWN, "--data", "{"), "--data is not valid JSON"),
        (("answer", UNKNOWN, "--data", ""), "--data is not valid JSON"),
        (("answer", UNKNOWN, "--data", "[" * 100_000), "--data is not valid JSON"),
        (("answer", UNKNOWN, "--data", "NaN"), "--data"),
        (("executions", "--cursor", "xx"), "the cursor cannot be read"),
        (("--agents", "json:loads", "run", "hello"), "it should hold an AgentBuilder"),
        (("--agents", "nowhere:agents", "run", "hello"), "the module of 'nowhere:agents' cannot be imported"),
        (("--agents", "nowhere", "run", "hello"), "write module:attribute"),
        (("run", "--agents", "nowhere", "hello"), "write module:attribute"),
        (("worker", "--agents", "nowhere"), "write module:attribute"),
        (("agents", "--agents", "nowhere"), "write module:attribute"),
    ],
)
async def test_invalid_input_is_refused_in_one_line(
    desk: CommandLine, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in await desk.error_of(*arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("executions", "--status", "happy"), "'happy' is not one of 'pending', 'running', 'paused'"),
        (("executions", "--limit", "0"), "0 is not in the range"),
        (("run",), "Missing argument 'MESSAGE'"),
        (("run", "--agnt", "x"), "Did you mean one of: '--agent', '--agents'?"),
        (("start",), "No such command 'start'"),
    ],
)
async def test_a_misspelled_name_is_reported(
    desk: CommandLine, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in await desk.usage_error_of(*arguments)


async def test_a_long_message_is_stored_whole(desk: CommandLine) -> None:
    """No message is sent through Temporal, so its size limits do not apply."""
    execution = desk.client.execution((await desk.output_of("run", "hello" * 100_000, "--detach")).strip())

    (said, *_) = await desk.installation.store.transcript(execution.ref)
    assert len(said.text) == 500_000
    await execution.cancel()


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"TEMPORAL_ADDRESS": "127.0.0.1:9"}, "no Temporal server answers at 127.0.0.1:9 (the connection is"),
        ({"DATABASE_URL": "postgresql://127.0.0.1:9/x"}, "Check that it runs and that the database URL is"),
        ({"DATABASE_URL": "sqlite://x"}, "the database URL is for sqlite; Everstep needs postgresql://..."),
        ({"DATABASE_REPLICA_URL": "mysql://x"}, "DATABASE_REPLICA_URL is for mysql; Everstep needs"),
        (
            {"TEMPORAL_ADDRESS": "https://t:7233"},
            "TEMPORAL_ADDRESS is 'https://t:7233', a URL: name host and",
        ),
        ({"TEMPORAL_NAMESPACE": "elsewhere"}, "check TEMPORAL_NAMESPACE"),
        ({"TEMPORAL_API_KEY": "secret"}, "does not speak TLS, which a TEMPORAL_API_KEY asks for"),
        ({"EVERSTEP_PAYLOAD_KEY": "short"}, "payload_key must be 32 random bytes in base64"),
        ({"EVERSTEP_PRESET": "best"}, "No preset named 'best'"),
        ({"EVERSTEP_SEARCH_ATTRIBUTES": "perhaps"}, "the settings cannot be used: search_attributes"),
    ],
)
async def test_a_missing_object_is_named_with_what_to_do(
    desk: CommandLine, environment: dict[str, str], complaint: str
) -> None:
    """Follows rule 18.5.13."""
    assert complaint in await desk.error_of("run", "hello", "--agent", "clerk", **environment)


async def test_without_an_installation_the_command_says_how_to_start_one(
    desk: CommandLine, tmp_path: Path
) -> None:
    nothing = {"DATABASE_URL": None, "TEMPORAL_ADDRESS": None}

    complaint = await desk.error_of("--data", tmp_path, "run", "hello", **nothing)

    assert "start a local installation with `everstep up`" in complaint


async def test_an_unexpected_error_is_one_line_with_a_way_to_see_more(
    desk: CommandLine, tmp_path: Path
) -> None:
    held = {"DATABASE_URL": None, "TEMPORAL_ADDRESS": None}
    (tmp_path / "lock").symlink_to("lock")

    complaint = await desk.error_of("--data", tmp_path, "run", "hello", **held)
    raised = await desk.run_command("--data", tmp_path, "--traceback", "run", "hello", **held)

    assert complaint == f"{tmp_path}/lock: Too many levels of symbolic links"
    assert isinstance(raised.exception, OSError)
