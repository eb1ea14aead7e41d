"""`--json` prints data only, in the shapes that docs/json-output.md describes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel

from everstep.cli.json_output import json_line
from everstep.cli.main import commands
from everstep.http_api.schemas.schedule_schemas import ScheduleDetails, ScheduleResponse
from everstep.http_api.schemas.tenant_schemas import TenantLimitsResponse
from everstep.http_api.schemas.webhook_schemas import DeliveryResponse, WebhookResponse
from tests.everstep.cli.agents import HOSTILE
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = (Path(__file__).parents[3] / "docs" / "json-output.md").read_text(encoding="utf-8")


def documented_keys(command: str) -> set[str]:
    """The keys that the page has for a command."""
    found = re.search(rf"^\| `{re.escape(command)}`[^|]*\|[^|]*\| (.*) \|$", PAGE, re.MULTILINE)
    assert found, command
    return set(re.findall(r"`(\w+)`", found[1]))


async def data_of(desk: CommandLine, *arguments: object) -> list[dict[str, Any]]:
    """The objects that a command prints, one per line."""
    result = await desk.run_command(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_every_command_that_reads_has_the_documented_keys(desk: CommandLine) -> None:
    """15.5.9"""
    execution = await desk.start_until_pause("pay")
    await desk.output_of("budgets", "set", "--usd", "5", "--user", "json-ann")
    await desk.output_of("keys", "create", "json-key")
    await desk.open_browser_session("json-ann")

    for arguments in (
        ("executions", "--limit", "1"),
        ("inbox", "--limit", "1"),
        ("show", execution.id),
        ("because", execution.id),
        ("trace", execution.id),
        ("top",),
        ("agents",),
        ("models",),
        ("budgets", "list"),
        ("keys", "list"),
        ("sign-ins", "list"),
        ("doctor",),
    ):
        name = " ".join(
            part for part in map(str, arguments[:2]) if part.replace("-", "x", 1).isalpha() and part[0] != "-"
        )
        rows = await data_of(desk, *arguments)
        assert rows, arguments
        for row in rows:
            assert set(row) == documented_keys(name), name
    (shown,) = await data_of(desk, "show", execution.id)
    assert set(shown["steps"][0]) == documented_keys("show steps")
    assert set(shown["requests"][0]) | {"command"} == documented_keys("inbox")
    (traced,) = await data_of(desk, "trace", execution.id)
    assert set(traced["steps"][0]) == documented_keys("trace steps")
    assert {span["kind"] for span in traced["steps"][0]["spans"]} == {"model", "people"}
    await execution.cancel()
    await desk.output_of("budgets", "remove", "--unit", "usd", "--user", "json-ann")


@pytest.mark.parametrize(
    ("command", "response"),
    [
        ("schedules list", ScheduleResponse),
        ("schedules show", ScheduleDetails),
        ("webhooks list", WebhookResponse),
        ("webhooks deliveries", DeliveryResponse),
        ("tenants list", TenantLimitsResponse),
    ],
)
async def test_the_page_has_the_keys_of_responses(command: str, response: type[BaseModel]) -> None:
    """15.5.9"""
    assert documented_keys(command) == set(response.model_fields)


async def test_the_page_names_every_command_that_prints_data() -> None:
    """15.5.9"""
    words = set(re.findall(r"[a-z-]+", PAGE))

    paths = [path for path, each in _commands(commands) if any(p.name == "as_json" for p in each.params)]
    assert len(paths) > 30
    assert [path for path in paths if not {*path} <= words] == []


def _commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group, with their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        assert each is not None
        if isinstance(each, click.Group):
            yield from _commands(each, (*path, name))
        else:
            yield (*path, name), each


async def test_files_of_an_execution_as_data(desk: CommandLine) -> None:
    """15.5.9"""
    started = await desk.output_of("run", "hello", "--agent", "clerk", "--detach", "--attach", __file__)

    (file,) = await data_of(desk, "files", started.strip())
    assert set(file) == documented_keys("files")


async def test_hidden_characters_are_escaped_and_none_is_lost() -> None:
    """15.5.9"""
    line = json_line({"text": HOSTILE, "nested": ("東京", "\U000e0041")})

    assert line.isprintable()
    assert json.loads(line) == {"text": HOSTILE, "nested": ["東京", "\U000e0041"]}
