"""docs/http-api.md matches the API: its commands are run, and its addresses exist."""

import asyncio
import json
import re
import signal
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

from everstep.http_api.callers import Grant
from everstep.runtime.settings import Settings
from tests.acceptance.harness import environment
from tests.everstep.http_api.house import described_api
from tests.services import data_directory

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")


async def test_every_command_of_the_page_is_run(programs: Path) -> None:
    """8.2.2, 8.5.3, 8.6.2"""
    (begin,) = re.findall(r"```\n(.*everstep.* up)\n```", PAGE)
    assert begin == ".venv/bin/everstep --agents examples.travel_desk:agents up"
    commands = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    with data_directory() as data:
        given = ("--data", str(data), "--agents", "examples.travel_desk:agents", "up")
        ports = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--json")
        up = await asyncio.create_subprocess_exec(
            programs / "everstep", *given, *ports, stdout=PIPE, cwd=ROOT, env=environment()
        )
        try:
            assert up.stdout
            told = json.loads(await up.stdout.readline())
            commands = commands.replace("http://127.0.0.1:8080", told["api_url"])
            commands = commands.replace(".venv/bin/everstep", f"{programs}/everstep --data {data}")
            shell = await asyncio.create_subprocess_exec(
                "bash",
                "-euo",
                "pipefail",
                "-c",
                commands,
                stdout=PIPE,
                stderr=STDOUT,
                cwd=ROOT,
                env=environment(),
            )
            async with asyncio.timeout(60):
                output = (await shell.communicate())[0].decode()
            assert shell.returncode == 0, output
        finally:
            up.send_signal(signal.SIGINT)
            await up.wait()
    for promised in (
        '"name":"travel-desk"',
        '"prompt":"Which day suits you?"',
        "Answer must be one of: Thursday, Friday",
        "refused, as Sunday is none of the choices",
        '"route":"answer"',
        '"response":"Your train to Bergen is booked."',
        "seat 12 in the 8:25 to Bergen",
        '"rating":"down"',
    ):
        assert promised in output, output


def test_the_page_lists_all_addresses() -> None:
    paths: dict[str, Any] = described_api()["paths"]
    there_are = {(method.upper(), path) for path, operations in paths.items() for method in operations}

    listed = set[tuple[str, str]]()
    for methods, path in re.findall(r"^\| (`[A-Z]+.*?)(/\S+)` \|", PAGE, re.MULTILINE):
        listed |= {(method, path) for method in re.findall(r"[A-Z]+", methods)}

    assert listed == there_are


def test_the_page_explains_every_scope() -> None:
    assert set(re.findall(r"^\| `([a-z:-]+)` \|", PAGE, re.MULTILINE)) == set(Grant)


def test_the_page_names_existing_settings() -> None:
    named = {name.removeprefix("EVERSTEP_").lower() for name in re.findall(r"EVERSTEP_[A-Z_]+", PAGE)}

    assert named <= set(Settings.model_fields)
    assert len(named) > 10
