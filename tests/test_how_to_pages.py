"""The Python of the how-to pages runs: the blocks of a page in order, in one namespace."""

import asyncio
import json
import os
import re
import signal
import sys
import tomllib
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from everstep import (
    Driver,
    ErrorPolicy,
    ErrorType,
    Preset,
    Presets,
    Script,
    SlimSerializationConfig,
    StopReason,
    ToolOptions,
)
from everstep.client.temporal_entry import ActRequest, ExecutionReport, StartRequest
from everstep.workflows import search_attributes
from tests.acceptance.harness import environment
from tests.services import data_directory

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NAMES = (
    "tools",
    "structured-results",
    "hooks",
    "models",
    "budgets",
    "cost",
    "events",
    "subagents",
    "troubleshooting",
    "migration",
    "long-conversations",
    "attachments",
)
SETTINGS = re.compile(r"EVERSTEP_|TEMPORAL_|DATABASE_URL|.*_API_KEY$")


def read_page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def find_blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language, each after as many empty lines as it has lines above it.

    So a traceback has the page's line. ```python no-run marks a fragment.
    """
    found = re.finditer(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return ["\n" * page.count("\n", 0, block.start(1)) + block[1] for block in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, without keys and settings in the environment."""
    for name in filter(SETTINGS.match, tuple(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("folder")
def test_the_python_of_a_page_runs(name: str) -> None:
    blocks = find_blocks(read_page(name), "python")
    names: dict[str, object] = {"__name__": name}
    for block in blocks:
        exec(compile(block, f"docs/{name}.md", "exec"), names)  # noqa: S102 -- our own pages
    assert blocks


@pytest.mark.usefixtures("folder")
def test_the_presets_of_the_page_on_models_are_valid() -> None:
    blocks = [tomllib.loads(block) for block in find_blocks(read_page("models"), "toml")]
    for settings in blocks:
        Presets.read(settings["presets"], {}, settings.get("preset"))
    assert len(blocks) == 4


def test_the_page_on_models_explains_every_setting_of_a_preset_and_every_driver() -> None:
    page = read_page("models")
    settings, drivers = (
        page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for title in ("Presets of your own", "Drivers")
    )
    explained = {
        name
        for cell in re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", settings, re.MULTILINE)
        for name in re.findall(r"[a-z_]+", cell)
    }
    assert explained == set(Preset.model_fields) - {"name"}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", drivers, re.MULTILINE)) == set(Driver)


def test_the_script_of_the_page_on_models_is_valid() -> None:
    (script,) = find_blocks(read_page("models"), "yaml")
    assert len(Script.from_yaml(script).scenarios) == 2


def test_the_page_on_tools_explains_every_option() -> None:
    assert {field.name for field in fields(ToolOptions)} <= set(
        re.findall(r"^\| `([a-z_]+)` \|", read_page("tools"), re.MULTILINE)
    )


@asynccontextmanager
async def open_desk(programs: Path) -> AsyncGenerator[Callable[..., Awaitable[str]]]:
    """An installation with the travel desk; yields a function that runs a command and returns its output."""
    with data_directory() as data:
        options = ("--data", str(data), "--agents", "examples.travel_desk:agents", "up", "--json")
        ports = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0")
        up = await asyncio.create_subprocess_exec(
            programs / "everstep", *options, *ports, stdout=PIPE, cwd=ROOT, env=environment()
        )

        async def run(*command: str, page: str) -> str:
            page = page.replace("127.0.0.1:7233", address)
            path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
            variables = environment(PATH=path, EVERSTEP_DATA=str(data), TEMPORAL_ADDRESS=address)
            process = await asyncio.create_subprocess_exec(
                *command, page, stdout=PIPE, stderr=STDOUT, cwd=ROOT, env=variables
            )
            async with asyncio.timeout(60):
                output = (await process.communicate())[0].decode()
            assert process.returncode == 0, output
            return output

        try:
            assert up.stdout
            address = json.loads(await up.stdout.readline())["temporal_address"]
            yield run
        finally:
            up.send_signal(signal.SIGINT)
            await up.wait()


SHELL = ("bash", "-euo", "pipefail", "-c")


async def test_the_commands_of_the_page_on_debugging_are_run(programs: Path) -> None:
    page = read_page("debugging")
    async with open_desk(programs) as run:
        output = await run(*SHELL, page="".join(find_blocks(page, "sh")))
    (trace,) = re.findall(r"```\n(step 1\n.*?)```", page, re.DOTALL)
    seconds = re.compile(r"[\d.]+ s\b")
    assert seconds.sub("0 s", trace) in seconds.sub("0 s", output)
    for promised in (
        "question   Which day suits you?",
        "ok     a worker answers",
        "waiting for people: book_train",
        'StaticSummary  "travel-desk"',
        "EverstepStatus",
        "ActivityTaskScheduled",
        "QueryResult",
    ):
        assert promised in output, output
    assert re.search(r"Running +agent-execution/", output), output


async def test_the_commands_and_programs_of_the_page_on_temporal_only_are_run(
    programs: Path, tmp_path: Path
) -> None:
    page = read_page("temporal-only")
    service, signalling, planning = find_blocks(page, "python")
    async with open_desk(programs) as run:
        output = await run(*SHELL, page="".join(find_blocks(page, "sh")))
        assert "COMPLETED" in output
        assert "No question is open" in output
        assert await run(sys.executable, "-c", page=service) == (
            "completed after 3 steps: Your train to Bergen is booked.\n"
        )
        assert await run(sys.executable, "-c", page=signalling) == (
            "user_input is refused: No question is open\ncompleted after 3 steps\n"
        )
        program = tmp_path / "planning.py"
        write = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[2])"
        await run(sys.executable, "-c", write, str(program), page=planning)
        assert await run(sys.executable, page=str(program)) == "paused\n"


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("`everstep.start`", StartRequest.model_fields),
        ("`everstep.act`", ActRequest.model_fields),
        ("The result", ExecutionReport.model_fields),
    ],
)
def test_the_page_on_temporal_only_explains_every_argument(title: str, names: Mapping[str, object]) -> None:
    section = read_page("temporal-only").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)) == set(names)


def test_the_page_on_debugging_names_every_search_attribute() -> None:
    assert {key.name for key in search_attributes.ALL} <= set(
        re.findall(r"`(\w+)` \|", read_page("debugging"))
    )


def find_rows(name: str, title: str) -> list[list[str]]:
    """The cells of the tables in a section, without the words of code's backquotes."""
    section = read_page(name).partition(f" {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in re.split(r" \| ", line)] for line in lines]


def test_the_page_on_troubleshooting_explains_every_stop_reason() -> None:
    rows = find_rows("troubleshooting", "Why did my agent stop after one step?")
    named = {reason for row in rows[1:] for reason in re.findall(r"\w+", row[0])}
    assert named == set(StopReason)


def test_the_page_on_troubleshooting_shows_the_decisions_of_every_error_policy() -> None:
    rows = {
        row[0].partition("(")[0]: row for row in find_rows("troubleshooting", "Configuring the error policy")
    }
    for name in ("stop_on_any_error", "retry_tool_errors", "ignore_tool_errors", "retry_all"):
        policy = ErrorPolicy.named(name)
        kinds = ("tool", "validation", "unknown", "rate_limit", "model")
        decisions = [policy.decision_for(ErrorType(kind)).value for kind in kinds]
        assert rows[name][1:] == [*decisions, str(policy.max_retries)]
        assert policy.on_timeout_error == policy.on_rate_limit_error


def test_the_page_on_models_lists_the_built_in_presets() -> None:
    rows = find_rows("models", "Built-in presets")[1:]
    presets = Presets.read({}, {}).by_name
    assert [row[:3] for row in rows] == [[name, each.driver, each.model] for name, each in presets.items()]
    assert [row[3] for row in rows] == [each.api_key_env or "none" for each in presets.values()]


@pytest.mark.parametrize("preset", ["minimal", "standard", "full", "unlimited"])
def test_the_page_on_migration_shows_every_preset_of_slim_snapshots(preset: str) -> None:
    config = getattr(SlimSerializationConfig, preset)()
    (row,) = [
        row for row in find_rows("migration", "From a full state to slim snapshots") if preset in row[0]
    ]
    limits = [config.max_messages, config.max_content_length, config.max_steps]
    numbers = [re.sub(r"\D", "", cell) or {"all": None, "none": "0"}[cell] for cell in row[1:4]]
    assert numbers == [None if limit is None else str(limit) for limit in limits]
    switches = [config.include_tool_results, config.include_continuation_trace, not config.redact_tool_args]
    assert [cell == "yes" for cell in row[4:]] == [*switches, config.include_metadata]


QUOTED = (
    "no worker has picked it up",
    "have not reached Temporal",
    "needs a key; set ",
    "Denied by user",
    "Waiting for people needs the durable runtime, this run is in-process",
    "Its workflow was terminated",
    "I am the scripted demo model of this installation",
    ", so it can run in-process only",
)


def test_the_pages_quote_texts_that_the_code_has() -> None:
    folders = (ROOT / "everstep", ROOT / "agent_domain")
    code = " ".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py"))
    quoted = [row[1] for row in find_rows("troubleshooting", "Provider errors")[1:]]
    quoted += QUOTED
    for text in quoted:
        for part in re.split(r"\.\.\.|`, `|`", text):
            assert part.strip(" ,'") in code, text
