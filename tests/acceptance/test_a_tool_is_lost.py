"""A worker is killed while real tools are in the middle of a call: each ends as it declares.

An idempotent tool runs again under the same key, and the model reads the same result. A tool that runs at
most once does not, and the model learns that its effect is unknown. A tool's model calls are paid for once,
and no process that it started is left.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.tools.tools import Effect, options_of
from everstep.client.client import Execution
from tests.acceptance import craftsman
from tests.acceptance.craftsman import BILL, GO, LETTER, MARK, PLAN, QUICK, SLOW, WALK, furnish
from tests.acceptance.harness import Account, Installation, Site, site, until, until_pause
from tests.everstep.capabilities.bash.surroundings import need_a_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = "tests.acceptance.craftsman:agents"
UNKNOWN = f"Error: {EFFECT_UNKNOWN}"
ALL = [*QUICK, *SLOW]
HELD = ";".join(f"{name} ran" for name in ALL)
ONCE = {"bash", "edit_file", "server_echo"}
"""The tools that declare that they run at most once."""


@dataclass(frozen=True)
class Day:
    """The results of the executions, and the files left in the folder."""

    site: Site
    accounts: Mapping[str, Account]
    read: Mapping[str, str]
    """What the model read of each tool's call."""
    walked: str
    """What it read of the command whose end is unknown."""
    notes: Mapping[str, Any]
    """The journal of the quick tools."""
    children: int

    @property
    def effect_counts(self) -> Mapping[str, int]:
        """How often each tool had its effect; the subagent's calls are not the agent's."""
        return self.site.counts("ran")

    @property
    def question_counts(self) -> Mapping[str, int]:
        """How often each question reached a model, by the last message."""
        return Counter(entry.data["last"] for entry in self.site.journal("asked"))

    def file(self, name: str) -> str:
        """The content of a file in its folder."""
        return (self.site.folder / "work" / name).read_text()


def began_by(site: Site) -> list[str]:
    """The processes that tools of the site's workers started and that still run."""
    return list(_began_by(f"{MARK}={site.folder}".encode()))


def _began_by(mark: bytes) -> Iterator[str]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                environ, words = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            # Bubblewrap's first process shows the variables that it started with.
            if mark in environ.split(b"\0") and b"worker" not in words:
                yield words.replace(b"\0", b" ").decode(errors="replace")


async def the_results(execution: Execution) -> dict[str, list[str]]:
    """The results that the model read, by tool."""
    found: dict[str, list[str]] = {}
    for step in await execution.steps():
        for call in step.calls:
            found.setdefault(call.call.name, []).append(call.record.text if call.record else "")
    return found


async def day(site: Site, executions: Mapping[str, Execution]) -> Day:
    """Wait for the end of all executions."""
    accounts = {name: await site.final_account(each) for name, each in executions.items()}
    found = [await the_results(each) for each in executions.values()]
    read = {name: texts for results in found for name, texts in results.items()}
    parent = executions["sending"]
    rows = [row for row in (await site.client.list(limit=200)).rows if row.parent_execution_id == parent.id]
    walked = read["bash"].pop()
    texts = {name: "\n".join(found) for name, found in read.items()}
    notes = (await site.installation.store.material(executions["quick"].ref)).metadata
    return Day(site, accounts, texts, walked, dict(notes), len(rows))


async def start_executions(site: Site) -> dict[str, Execution]:
    """Start all executions but the one with the quick tools."""
    messages = {
        "slow": "Please take your time",
        "sending": "Please send somebody",
        "asking": "Please ask me",
    }
    executions = {name: await site.start(said, "craftsman") for name, said in messages.items()}
    await until_pause(executions["asking"])
    return executions


async def run_without_crash(site: Site) -> Day:
    """The worker is not killed."""
    await site.worker()
    (site.folder / "work" / GO).touch()
    executions = await start_executions(site)
    executions["quick"] = await site.start("Please do it at once", "craftsman")
    await executions["asking"].submit_input("oak")
    return await day(site, executions)


async def run_with_crash(site: Site) -> Day:
    """The worker is killed when each tool has done its work and none has reported; one command still runs."""
    first = await site.worker(gates=HELD)
    executions = await start_executions(site)
    for name in SLOW:
        await site.until_entry("waiting", f"{name} ran")
    # The other search is the agent's.
    await until("the subagent searches", lambda: site.count("waiting", "search_files ran") == 2)
    await until("the command walks", (site.folder / "work" / WALK).exists)
    assert began_by(site)
    # Last, and all in one step, because they can be held only for a moment: quick tools have five seconds.
    executions["quick"] = await site.start("Please do it at once", "craftsman")
    for name in QUICK:
        await site.until_entry("waiting", f"{name} ran")
    await first.kill()
    await until("nothing is left of what tools began", lambda: not began_by(site))
    (site.folder / "work" / GO).touch()
    site.open_gates()
    answering = asyncio.create_task(executions["asking"].submit_input("oak"))
    await site.worker()
    await answering
    return await day(site, executions)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def days(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[tuple[Day, Day]]:
    """A run without the crash, and a run with it."""
    need_a_sandbox()
    folders = [tmp_path_factory.mktemp("craft") / name for name in ("undisturbed", "cut-short")]
    async with (
        site("craft-1", installation, folders[0], AGENTS, **{MARK: str(folders[0])}) as one,
        site("craft-2", installation, folders[1], AGENTS, **{MARK: str(folders[1])}) as other,
    ):
        for folder in folders:
            furnish(folder / "work")
        yield await asyncio.gather(run_without_crash(one), run_with_crash(other))


async def test_the_cases_cover_every_tool() -> None:
    """The cases below expect what the tools declare."""
    (agent,) = craftsman.agents
    listed = {"server_echo": Effect.AT_MOST_ONCE, "server_dies_once": Effect.IDEMPOTENT}
    declared = {tool.name: options_of(tool).effect for tool in agent.tools} | listed
    assert {*declared} == {*ALL, "spawn_subagent", "user_input"}
    assert {name for name, effect in declared.items() if effect is Effect.AT_MOST_ONCE} == ONCE


@pytest.mark.parametrize("name", sorted(set(ALL) - ONCE))
async def test_an_idempotent_tool_runs_again(days: tuple[Day, Day], name: str) -> None:
    """1.1.3: under the same key, and the model reads the same result as without the crash."""
    expected, actual = days

    # The subagent searches as well.
    each = 2 if name == "search_files" else 1
    assert (expected.effect_counts[name], actual.effect_counts[name]) == (each, 2 * each)
    assert actual.read[name] == expected.read[name]
    assert actual.read[name] != UNKNOWN
    keys = {entry.data["key"] for entry in actual.site.journal("ran") if entry.where == name}
    assert len(keys) == each


@pytest.mark.parametrize("name", sorted(ONCE))
async def test_a_tool_that_runs_at_most_once_does_not(days: tuple[Day, Day], name: str) -> None:
    """1.1.3: the model learns that the effect is unknown."""
    expected, actual = days

    assert actual.read[name] == UNKNOWN
    assert not expected.read[name].startswith("Error")
    # The undisturbed long command has run as well.
    assert (expected.effect_counts[name], actual.effect_counts[name]) == (2 if name == "bash" else 1, 1)


async def test_the_effects_of_tools_happen_once(days: tuple[Day, Day]) -> None:
    """9.1.1, 9.2.3, 9.2.4, 1.1.3: on the disk."""
    expected, actual = days
    for name in (BILL, PLAN, LETTER):
        assert actual.file(name) == expected.file(name)
    assert actual.file(BILL) == "paid\n"
    assert actual.file(PLAN) == "A final draft.\n"


async def test_a_command_ends_with_its_worker(days: tuple[Day, Day]) -> None:
    """9.1.1: it did not continue, it was not started a second time, and the model learns so."""
    expected, actual = days

    assert expected.walked == expected.file(WALK) == "begun\nended\n"
    assert actual.file(WALK) == "begun\n"
    assert actual.walked == UNKNOWN


async def test_the_model_calls_of_tools_are_made_once(days: tuple[Day, Day]) -> None:
    """9.8.1, 9.9.1, 1.1.1: although the tools ran again."""
    expected, actual = days

    assert actual.question_counts[craftsman.ASKED] == actual.question_counts[craftsman.EXTRACTED] == 1
    assert actual.read["llm_query"] == "Paris."
    assert actual.read["extract_data"] == "Extracted fruit into 'found': {\"number\":6}"
    usage = [each.rows["agent_executions"][0]["token_usage"] for each in (*expected.accounts.values(),)]
    assert usage == [each.rows["agent_executions"][0]["token_usage"] for each in (*actual.accounts.values(),)]


async def test_a_subagent_continues(days: tuple[Day, Day]) -> None:
    """9.6.2, 1.1.1: and there is only one."""
    expected, actual = days

    assert actual.read["spawn_subagent"] == expected.read["spawn_subagent"] == "[Subagent: finder] Found."
    assert actual.children == expected.children == 1
    assert actual.question_counts[craftsman.TASK] == 1


async def test_a_question_waits_without_a_worker(days: tuple[Day, Day]) -> None:
    """8.4.1, 8.5.3: and the next worker receives its answer."""
    expected, actual = days

    assert actual.read["user_input"] == "oak"
    assert actual.accounts["asking"] == expected.accounts["asking"]


async def test_quick_tools_leave_everything_as_without_the_crash(days: tuple[Day, Day]) -> None:
    """9.3.2, 9.4.2, 9.5.3, 1.1.3: every stored row, including notes and tasks."""
    expected, actual = days

    assert in_any_order(actual.accounts["quick"]) == in_any_order(expected.accounts["quick"])
    assert actual.notes == expected.notes == {"wood": "oak", "tasks": [*QUICK["todo_write"]["todos"]]}
    for each in actual.accounts.values():
        assert each.status is ExecutionStatus.COMPLETED


def in_any_order(account: Account) -> Mapping[str, object]:
    """Its rows in a fixed order: viewers see calls that run in parallel in the order in which they ended."""
    envelopes = sorted(json.dumps([row["type"], row["payload"]]) for row in account.rows["agent_envelopes"])
    return {**account.rows, "agent_envelopes": envelopes}


async def test_a_server_lists_its_tools_once(days: tuple[Day, Day]) -> None:
    """1.1.1: for each execution, on any worker; the subagent counts as one."""
    expected, actual = days

    assert actual.site.count("listed", "server") == expected.site.count("listed", "server") == 5
