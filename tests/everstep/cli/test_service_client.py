"""The page about the Python client: its program runs against an installation."""

import asyncio
import contextlib
import io
import re
from pathlib import Path

import pytest

from everstep import InvalidInput, SyncClient, open_client
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = (Path(__file__).parents[3] / "docs" / "python-client.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def variables(desk: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of a service of this installation, in a folder without settings."""
    monkeypatch.chdir(tmp_path)
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value)


async def test_the_program_of_the_page_prints_the_answer() -> None:
    """8.2.12"""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    # The clerk of these tests takes the place of the agent of `everstep init`.
    program = program.replace("shipping-desk", "clerk").replace(
        "What does it cost to ship 2 kg to Norway?", "hello"
    )

    def run() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(program, "python-client.md", "exec"), {})  # noqa: S102 -- our own page
        return printed.getvalue()

    assert (await asyncio.to_thread(run)).startswith("completed ")


async def test_a_program_without_an_event_loop_runs_an_agent() -> None:
    """8.2.12"""

    def run() -> str:
        with SyncClient(open_client) as client:
            return client.run("clerk", "hello").status

    assert await asyncio.to_thread(run) == "completed"


async def test_settings_that_cannot_be_used_are_refused() -> None:
    """8.2.12"""
    with pytest.raises(InvalidInput, match=r"the settings cannot be used: .*http_port"):
        async with open_client(http_port="many"):
            pass
