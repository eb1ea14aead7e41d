"""The real local model: `make model` downloads it and runs these tests, `make test` does not."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from everstep import AgentBuilder, ErrorPolicy, RunContext, ToolContext, tool
from everstep.agent_domain.messages.cached_context import InferenceRequest, ResponseFormat
from everstep.agent_domain.messages.messages import system, user
from everstep.agent_domain.values import parse_json
from everstep.runtime.local_model.model_server import missing_part
from everstep.runtime.models import models_of
from everstep.runtime.settings import Settings
from tests.browsers.chromium import a_page, chromium
from tests.browsers.web_application import application

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PATIENCE = 300_000
"""Milliseconds that an answer may take on a busy machine."""
ORDERS = {("ann", 7): "a train to Bergen", ("bob", 8): "a bicycle"}


@tool
def read_order(number: int, context: ToolContext) -> str:
    """Read an order of the customer."""
    return ORDERS.get((context.user_id or "", number), "There is no such order")


@pytest_asyncio.fixture(autouse=True)
async def settings() -> AsyncGenerator[Settings]:
    settings = Settings.read()
    assert missing_part(settings) is None
    yield settings


async def test_it_calls_a_tool_and_answers_with_the_result() -> None:
    """13.7.4"""
    shop = AgentBuilder.base().with_model("local").with_tools([read_order]).with_timeout(600)
    shop.with_system_prompt("You are the order desk of a shop. Be brief.")
    agent = shop.with_error_policy(ErrorPolicy.retry_tool_errors()).build()

    state = await agent.arun("What is in my order number 7?", context=RunContext(user_id="ann"))
    assert [message.text for message in state.messages if message.is_tool][:1] == ["a train to Bergen"]
    assert "Bergen" in (state.final_response or "")
    state = await agent.arun("What is in my order number 8?", context=RunContext(user_id="ann"))
    texts = [message.text for message in state.messages if message.is_tool]
    assert texts
    assert not any("bicycle" in text for text in texts)


async def test_text_arrives_in_pieces_and_json_fits_its_schema(settings: Settings) -> None:
    """13.7.4"""
    models = models_of(settings)
    pieces = list[str]()
    answer = await models.model("local").respond(
        InferenceRequest((system("Be brief."), user("Name three colours."))), pieces.append
    )
    assert len(pieces) > 2
    assert "".join(pieces) == answer.text
    assert answer.usage.output > 0

    schema = {
        "type": "object",
        "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
        "required": ["country", "capital"],
        "additionalProperties": False,
    }
    wanted = ResponseFormat.from_dict({"type": "json_schema", "schema": schema})
    request = InferenceRequest((user("Extract: the capital of Norway is Oslo."),), response_format=wanted)
    answer = await models.model("local").respond(request, pieces.append)
    assert parse_json(answer.text) == {"country": "Norway", "capital": "Oslo"}
    await models.aclose()


async def test_the_example_talks_to_it(tmp_path: Path) -> None:
    """All parts of the transcript, with a short conversation."""
    example, programs = ROOT / "examples" / "08_local_model", Path(sys.executable).parent
    given = {**os.environ, "EVERSTEP_AUTH_SECRET": "s" * 32, "EVERSTEP_DATA": str(tmp_path / "data")}
    ports = (*("--temporal-port", "0", "--ui-port", "0"), *("--http-port", "0", "--gateway-port", "0"))
    command = [str(programs / "everstep"), "up", "--model", "local", "--json", *ports]
    process = await asyncio.create_subprocess_exec(*command, cwd=example, env=given, stdout=PIPE)
    assert process.stdout
    try:
        addresses = json.loads(await process.stdout.readline())
        given["EVERSTEP_API_URL"] = addresses["api_url"]
        talk = await asyncio.create_subprocess_exec(
            sys.executable, "talk.py", "4", cwd=example, env=given, stdout=PIPE
        )
        said, _ = await talk.communicate()
    finally:
        process.terminate()
        await process.wait()
    text = said.decode()
    assert talk.returncode == 0, text
    for part in ("-> a kettle for 42 euros", "-> There is no such order", "chief   approves it", '"age": 36'):
        assert part in text
    assert "bicycle" not in text
    assert "The session has all 4 questions." in text


async def test_a_page_of_the_web_application_shows_its_answers(tmp_path: Path) -> None:
    """13.7.4: a tool, and in the same session a refund that a person approves."""
    async with (
        application(tmp_path, model="local") as address,
        chromium() as browser,
        a_page(browser, tmp_path) as ann,
    ):
        await ann.goto(address)
        await expect(ann.locator("#state")).to_have_text("live", timeout=PATIENCE)
        await ann.get_by_role("button", name="Send").click()
        await expect(ann.locator("#status")).to_have_text("completed", timeout=PATIENCE)
        await expect(ann.locator(".tool").first).to_contain_text("1042")
        await expect(ann.locator(".text").last).not_to_be_empty()

        await ann.get_by_label("Message").fill("Please pay back 42 euros for order 1042.")
        await ann.get_by_role("button", name="Send").click()
        await expect(ann.locator(".card")).to_contain_text(
            'refund {"number":1042,"amount":42}', timeout=PATIENCE
        )
        await ann.get_by_role("button", name="Approve").click()
        await expect(ann.locator(".tool").last).to_contain_text("42 euros are paid back", timeout=PATIENCE)
        await expect(ann.locator("#status")).to_have_text("completed", timeout=PATIENCE)
