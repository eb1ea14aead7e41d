"""A page in a real browser that watches with our client."""

from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlencode

import pytest_asyncio
from playwright.async_api import Page, expect

from tests.broadcast_gateway.writers import EXECUTION
from tests.browsers.chromium import a_page, chromium, our_pages, serve_app
from tests.browsers.scripted_gateway import (
    CHANNEL,
    DEADLINE,
    EPOCH,
    ScriptedGateway,
    chunk,
    execution_end,
    snapshot,
    step_end,
    stored_frame,
)

expect.set_options(timeout=DEADLINE * 1000)


@pytest_asyncio.fixture
async def origin() -> AsyncGenerator[str]:
    """The page's origin."""
    async with serve_app(our_pages()) as origin:
        yield origin


async def shows(page: Page, *events: str, text: str, state: str = "live") -> None:
    """Wait until the page shows exactly this."""
    await expect(page.locator("#events li")).to_have_text(events)
    await expect(page.locator("#text")).to_have_text(text, use_inner_text=False)
    await expect(page.locator("#state")).to_have_text(state)
    # The expectation above ignores blanks.
    assert await page.locator("#text").text_content() == text


async def test_a_page_shows_the_stored_state_despite_cuts(
    gateway: ScriptedGateway, origin: str, tmp_path: Path
) -> None:
    """7.8.1, 7.8.4: a gap, a cut connection and a reloaded page do not change it."""
    query = urlencode({"url": gateway.url, "channel": CHANNEL, "since": '{"seq": 0}'})
    async with chromium() as browser, a_page(browser, tmp_path) as page:
        await page.goto(f"{origin}/?{query}")
        connection = await gateway.next_client()
        assert connection.socket.request
        assert connection.socket.request.headers["Origin"] == origin
        await connection.accept_subscription()
        await connection.send(stored_frame(1), chunk(0, "Once "), chunk(1, "upon "))
        await shows(page, "1 agent.tool.started", text="Once upon ")

        connection.cut()
        connection = await gateway.next_client()
        since = await connection.accept_subscription()
        assert (since["seq"], since["drafts"][0]["next_index"]) == (1, 2)
        await connection.send(stored_frame(1), chunk(1, "upon "), chunk(2, "a "), stored_frame(2))
        await shows(page, "1 agent.tool.started", "2 agent.tool.started", text="Once upon a ")

        await connection.send(stored_frame(4), chunk(4, "."))
        await connection.accept_subscription()
        await connection.send(chunk(3, "time"), stored_frame(3), chunk(4, "."), step_end(4), chunk(5, "late"))
        lines = [f"{seq} agent.tool.started" for seq in (1, 2, 3)]
        await shows(page, *lines, "4 agent.step.completed", text="Once upon a time.")

        await connection.send(chunk(0, "Then ", step=2))
        await shows(page, *lines, "4 agent.step.completed", text="Then ")
        await page.reload()
        connection = await gateway.next_client()
        assert await connection.accept_subscription() == {"epoch": EPOCH, "seq": 4}
        await connection.send(snapshot(1, "Then ", step=2), chunk(1, "what?", step=2), execution_end(5))
        await shows(page, "5 agent.status", text="Then what?")


async def test_a_page_that_may_not_watch_reports_it(
    gateway: ScriptedGateway, origin: str, tmp_path: Path
) -> None:
    """7.8.1"""
    query = urlencode({"url": gateway.url, "channel": f"agent.execution.{EXECUTION}", "since": "null"})
    async with chromium() as browser, a_page(browser, tmp_path) as page:
        await page.goto(f"{origin}/?{query}")
        connection = await gateway.next_connection()
        await connection.receive("hello")
        await connection.socket.close(3502, "not you")
        await shows(page, text="", state="closed")
    assert gateway.is_left_alone
