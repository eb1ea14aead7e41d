"""The programs of `examples/07_front_ends`, with the agent of these tests."""

import asyncio
import os
import shutil
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from tests.everstep.http_api.house import ApiCaller
from tests.node import installed_modules, node
from tests.wires.clients import LOCK

EXAMPLE = Path(__file__).parents[2] / "examples" / "07_front_ends"

pytestmark = pytest.mark.usefixtures("work")

PROGRAMS = {
    "ag_ui.mjs": ("/agui/clerk",),
    "chat.mjs": ("/ai/clerk/chat",),
    "responses.mjs": ("/v1", "clerk"),
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_answers_and_approves(url: str, ann: ApiCaller, tmp_path: Path, program: str) -> None:
    """17.1.4, 17.3.2, 17.5.5"""
    shutil.copy(EXAMPLE / program, tmp_path)
    (tmp_path / "node_modules").symlink_to(installed_modules(LOCK))
    token = ann.http.headers["authorization"].removeprefix("Bearer ")
    path, *more = PROGRAMS[program]
    for said, promised in (
        ("ask", ["Which day?", "So be it: Monday", "completed: the model answered"]),
        ("book", ['{"hotel":"Harbour Inn"}', "So be it: a room at Harbour Inn"]),
    ):
        process = await asyncio.create_subprocess_exec(
            *(node(), program, url + path, *more, said),
            cwd=tmp_path,
            env={**os.environ, "TOKEN": token},
            stdout=PIPE,
            stderr=STDOUT,
        )
        async with asyncio.timeout(60):
            output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        assert [text for text in promised if text not in output] == [], output
