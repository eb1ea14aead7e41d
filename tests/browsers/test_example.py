"""The pages of `examples/04_browser`, with everything that they need and without stand-ins."""

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import STDOUT, Process
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from playwright.async_api import Page, expect

from everstep import Happened, Position, stream
from tests.acceptance.harness import DEADLINE, ROOT, environment, until
from tests.browsers.chromium import a_page, chromium
from tests.node import installed_modules
from tests.services import data_directory

EXAMPLE = ROOT / "examples" / "04_browser"
ASKED = "Plan me a day in Bergen"

expect.set_options(timeout=DEADLINE * 1000)


@dataclass
class RunningExample:
    """The program, as a user runs it."""

    process: Process
    log: Path

    async def until_output(self, pattern: str, number: int = 1) -> str:
        """Wait for this many lines of this form and return the last."""

        def matches() -> list[str]:
            return re.findall(pattern, self.log.read_text())

        await until(
            f"it says {pattern}", lambda: len(matches()) >= number or self.process.returncode is not None
        )
        assert self.process.returncode is None, self.log.read_text()
        return matches()[number - 1]


def copy_example(folder: Path) -> Path:
    """A copy that writes in fewer and longer pieces: each of them costs every process CPU time."""
    copy = Path(shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules")))
    script = copy / "guide.yaml"
    quick = script.read_text().replace("{characters: 4, seconds: 0.04}", "{characters: 20, seconds: 0.1}")
    assert quick != script.read_text()
    script.write_text(quick)
    return copy


@asynccontextmanager
async def run_example(data: Path, log: Path) -> AsyncGenerator[RunningExample]:
    """Run the program for the time of the block; it ends without an error."""
    arguments = ("--data", str(data), "--port", "0", "--modules", str(installed_modules(EXAMPLE)))
    given = environment(EVERSTEP_HTTP_PORT="0", EVERSTEP_GATEWAY_PORT="0")
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            copy_example(log.parent / "example") / "serve.py",
            *arguments,
            stdout=out,
            stderr=STDOUT,
            cwd=data,
            env=given,
        )
    try:
        yield RunningExample(process, log)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(DEADLINE):
            await process.wait()
    assert process.returncode == 0, log.read_text()


async def change_epoch(data: Path) -> None:
    """Change the epoch, as restoring a backup does."""
    command = (sys.executable, "-m", "everstep.cli", "--data", str(data), "db", "restored")
    process = await asyncio.create_subprocess_exec(*command, cwd=data, env=environment())
    assert await process.wait() == 0


async def is_writing(page: Page) -> None:
    """Wait until the page shows text of the model."""
    await page.wait_for_function("document.querySelector('#story .text')?.textContent.length > 40")


async def loses_its_connection(page: Page) -> None:
    await page.wait_for_function("document.querySelector('#state').textContent !== 'live'")


async def page_text(page: Page) -> dict[str, Any]:
    """The page's text."""
    kinds = {"asked": ".user", "texts": ".text", "tools": ".tool", "events": "#events li"}
    found = {name: await page.locator(kind).all_text_contents() for name, kind in kinds.items()}
    # Two calls of a step run in parallel, in any order.
    return found | {
        "tools": sorted(found["tools"]),
        "status": await page.locator("article").get_attribute("data-status"),
        "state": await page.locator("#state").text_content(),
    }


async def shows(page: Page, expected: dict[str, Any]) -> None:
    """Wait until the page shows exactly this."""
    # The text of a finished step comes from the API.
    await expect(page.locator(".text")).to_have_text(expected["texts"])
    assert await page_text(page) == expected


async def expected_text(config: dict[str, str], session: str) -> dict[str, Any]:
    """The expected text, by the HTTP API and by the journal."""
    headers = {"Authorization": f"Bearer {config['token']}"}
    async with httpx2.AsyncClient(base_url=config["api"], headers=headers) as http:
        listed = (await http.get(f"/agent/sessions/{session}/messages?limit=200")).json()
        messages = listed["items"][::-1]
        execution = messages[-1]["execution_id"]
        steps = (await http.get(f"/agent/executions/{execution}/steps")).json()["items"]
        status = (await http.get(f"/agent/executions/{execution}")).json()["status"]
    said = [each["content"] for step in steps for each in step["messages"] if each["role"] == "assistant"]
    assert said[-1] == messages[-1]["content"]
    assert sum(len(text.split()) for text in said) > 300
    events = await stored_events(config, session)
    assert [int(each.split()[0]) for each in events] == [*range(1, len(events) + 1)]
    results = [each["content"] for each in messages if re.match(r"\w+: ", each["content"])]
    return {
        "asked": [messages[0]["content"]],
        "texts": said,
        "tools": sorted(results),
        "events": events,
        "status": status,
        "state": "live",
    }


async def stored_events(config: dict[str, str], session: str) -> list[str]:
    """All stored envelopes of a session, once the terminal `agent.status` of its execution is stored."""
    url, channel, events = f"{config['gateway']}/v1", f"agent.session.{session}", list[str]()
    async with aclosing(stream(url, channel, token=config["token"], since=Position())) as received:
        async for event in received:
            if isinstance(event, Happened):
                events.append(f"{event.envelope.seq} {event.envelope.type}")
                if event.ends(event.envelope.execution_id):
                    break
    return events


async def test_both_pages_show_the_stored_state_despite_every_loss(tmp_path: Path) -> None:
    """7.4.2, 7.8.1, 7.8.3, 7.8.4: the gateway is killed, pages are reloaded, the history changes."""
    with data_directory() as data:
        async with (
            run_example(data, tmp_path / "log") as program,
            chromium() as browser,
            a_page(browser, tmp_path) as ours,
            a_page(browser, tmp_path) as pushers,
        ):
            address = await program.until_output(r"pages +(\S+)/ ")
            config = httpx2.get(f"{address}/config.json").json()
            await ours.goto(address)
            await expect(ours.locator("#state")).to_have_text("live")
            await ours.get_by_role("button").click()
            await ours.wait_for_url("**#*")
            session = ours.url.partition("#")[2]
            await pushers.goto(f"{address}/pusher.html#{session}")
            await asyncio.gather(is_writing(ours), is_writing(pushers))

            losing = [asyncio.create_task(loses_its_connection(page)) for page in (ours, pushers)]
            os.kill(int(await program.until_output(r"kill -9 (\d+)")), signal.SIGKILL)
            await asyncio.gather(*losing)
            await program.until_output(r"kill -9 (\d+)", 2)
            for page in (ours, pushers):
                await expect(page.locator("#state")).to_have_text("live")
            await ours.reload()
            await expect(ours.locator("#state")).to_have_text("live")
            await ours.screenshot(path=tmp_path / "writing.png")

            for page in (ours, pushers):
                await expect(page.locator("article")).to_have_attribute("data-status", "completed")
            expected = await expected_text(config, session)
            assert (expected["asked"], expected["status"]) == ([ASKED], "completed")
            for page in (ours, pushers):
                await expect(page.locator("#events li")).to_have_count(len(expected["events"]))
                await shows(page, expected)
            for page in (ours, pushers):
                await page.reload()
                await expect(page.locator("#state")).to_have_text("live")
                await shows(page, expected)
            await ours.screenshot(path=tmp_path / "index.png")
            await pushers.screenshot(path=tmp_path / "pusher.png")

            await change_epoch(data)
            for page in (ours, pushers):
                # The page's events are void: it shows the messages of the API instead, and no envelopes.
                await expect(page.locator("#events li")).to_have_count(0)
                await expect(page.locator(".text")).to_have_text(expected["texts"])
                await expect(page.locator(".user")).to_have_text(expected["asked"])
