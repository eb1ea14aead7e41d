"""The commands that export runs and replay them."""

import json
import re
from pathlib import Path

import pytest

from tests.everstep.cli.desk import AGENTS, CommandLine
from tests.everstep.runtime.replay.shop import RUN

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOP = "tests.everstep.runtime.replay.shop_agents:agents"


async def a_run(desk: CommandLine) -> str:
    """The id of a completed execution."""
    execution = await desk.client.start("clerk", "Hello")
    await execution.result()
    return str(execution.id)


async def test_an_exported_test_passes_and_is_refused_where_files_are(
    desk: CommandLine, tmp_path: Path
) -> None:
    """15.3.1, 15.3.9, 15.3.10"""
    identity, folder = await a_run(desk), tmp_path / "runs"
    first = await desk.run_command("export", identity, "--as", "test", "--output", folder)
    assert first.exit_code == 0, first.output
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"clerk_{identity[:8]}.json", f"test_clerk_{identity[:8]}.py"]

    again = await desk.run_command("export", identity, "--as", "test", "--output", folder)
    assert again.exit_code == 1
    assert f"the folder {folder} has files in it ({names[0]}, {names[1]})" in again.output
    content = (folder / names[0]).read_text()
    forced = await desk.run_command("export", identity, "--as", "test", "--output", folder, "--force")
    assert forced.exit_code == 0
    assert (folder / names[0]).read_text() == content

    done = await desk.run_command("eval", folder, "--agents", AGENTS)
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "1 of 1 runs do what they did."), done.output


async def test_filters_choose_the_runs_of_a_dataset(desk: CommandLine, tmp_path: Path) -> None:
    """15.3.8"""
    identities = {await a_run(desk), await a_run(desk)}
    given = ("--as", "dataset", "--shape", "eval", "--output", tmp_path / "data")
    done = await desk.run_command("export", "--agent", "clerk", "--since", "1h", "--limit", 2, *given)

    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "data" / "dataset.jsonl").read_text().splitlines()]
    assert {line["metadata"]["execution_id"] for line in lines} == identities


async def test_a_run_that_waits_is_exported_up_to_its_last_step(desk: CommandLine, tmp_path: Path) -> None:
    """15.3.9"""
    execution = await desk.start_until_pause("pay")
    done = await desk.run_command("export", execution.id, "--as", "test", "--output", tmp_path / "runs")

    assert done.exit_code == 0, done.output
    assert f"the execution {execution.id} is paused: it is exported up to step 1" in done.output
    assert (await desk.run_command("eval", tmp_path / "runs")).exit_code == 0
    await execution.cancel()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("00000000-0000-0000-0000-000000000001",), "There is no execution 00000000-"),
        ((), "name executions, or choose some with --agent"),
        (("abc", "--agent", "clerk"), "name executions, or choose some with --agent"),
        (("--since", "yesterday"), "'yesterday' is not a time; write how long ago, such as 30m, 2h or 7d"),
        (("--agent", "unheard"), "there are no such executions to export"),
    ],
)
async def test_bad_input_is_explained(
    desk: CommandLine, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """15.3.9"""
    done = await desk.run_command("export", *arguments, "--as", "test", "--output", tmp_path / "runs")

    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "runs").exists()


async def test_a_run_that_differs_is_shown_and_counted(desk: CommandLine, tmp_path: Path) -> None:
    """15.3.10: in words, and as JSON with the exit code 1."""
    data = json.loads(RUN.read_text())
    data["spec"]["cached_context"]["messages"][0]["content"] = "You help the customers of a bank."
    file = tmp_path / RUN.name
    file.write_text(json.dumps(data))
    (tmp_path / "broken.json").write_text('{"format": "everstep.run", "version": 9}')
    given = (file, RUN, tmp_path / "broken.json", "--agents", SHOP)
    shown = await desk.run_command("eval", *given, EVERSTEP_AGENTS=None)
    counted = await desk.run_command("eval", *given, "--json", EVERSTEP_AGENTS=None)

    assert (shown.exit_code, counted.exit_code) == (1, 1)
    assert "- You help the customers of a bank." in shown.output
    assert "1 of 3 runs do what they did." in shown.output
    report = json.loads(counted.output)
    assert (report["same"], report["different"], report["failed"]) == (1, 1, 1)
    assert [run["same"] for run in report["runs"]] == [False, True, False]
    assert "has version 9 of the format" in report["runs"][2]["error"]

    recorded = await desk.run_command("eval", file, "--record", "--agents", SHOP, EVERSTEP_AGENTS=None)
    assert (recorded.exit_code, "recorded again" in recorded.output) == (0, True)
    assert (await desk.run_command("eval", file, "--agents", SHOP, EVERSTEP_AGENTS=None)).exit_code == 0


async def test_a_path_without_runs_is_refused(desk: CommandLine, tmp_path: Path) -> None:
    """15.3.10"""
    done = await desk.run_command("eval", tmp_path)

    assert (done.exit_code, done.output) == (1, f"Error: the folder {tmp_path} has no exported run in it\n")


async def test_a_script_plays_the_run_again(desk: CommandLine, tmp_path: Path) -> None:
    """15.3.7"""
    identity = await a_run(desk)
    done = await desk.run_command("export", identity, "--as", "scenario", "--output", tmp_path / "runs")

    assert done.exit_code == 0, done.output
    assert "when: Hello" in (tmp_path / "runs" / f"clerk_{identity[:8]}.yaml").read_text()


async def test_an_exported_ledger_is_audited(desk: CommandLine, tmp_path: Path) -> None:
    """15.7.9"""
    identity, file = await a_run(desk), tmp_path / "ledger.ndjson"
    file.write_text(await desk.output_of("ledger", identity))

    audited = await desk.output_of("audit", identity, "--ledger", file)
    assert re.search(r"ledger +\d+ entries\n", audited), audited
    assert "result     whole" in audited
    file.write_text(file.read_text().replace('"attempt":1', '"attempt":2'))
    changed = await desk.run_command("audit", identity, "--ledger", file)
    assert changed.exit_code == 1
    assert "The text of the entry was changed" in changed.output

    missing = tmp_path / "nothing"
    assert f"the ledger {missing} cannot be read" in await desk.error_of(
        "audit", identity, "--ledger", missing
    )
    file.write_text("{")
    assert f"line 1 of {file}" in await desk.error_of("audit", identity, "--ledger", file)
    assert "--ledger needs the ID of an execution" in await desk.usage_error_of(
        "audit", "--all", "--ledger", file
    )
