"""The application of `examples/06_web_application`, over a local installation, in Chromium."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from playwright.async_api import Page, expect

from everstep.runtime.embedded.free_ports import free_port
from tests.acceptance.harness import DEADLINE, ROOT, environment, until
from tests.browsers.chromium import a_page, chromium
from tests.services import data_directory

EXAMPLE = ROOT / "examples" / "06_web_application"
TUTORIAL = ROOT / "docs" / "tutorials" / "web-application.md"
PROGRAMS = Path(sys.executable).parent
FIRST = re.compile("In another terminal|Uvicorn running")

expect.set_options(timeout=DEADLINE * 1000)


@asynccontextmanager
async def application(folder: Path) -> AsyncGenerator[str]:
    """The installation and the application, by the commands of the example's page, on free ports."""
    (commands,) = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    web, api = free_port(), free_port()
    address, log = f"http://127.0.0.1:{web}", folder / "log"
    given = environment(
        PATH=f"{PROGRAMS}:{os.environ['PATH']}",
        PYTHONUNBUFFERED="1",
        PYTHONDONTWRITEBYTECODE="1",
        EVERSTEP_DATA=str(folder / "data"),
        EVERSTEP_HTTP_PORT=str(api),
        EVERSTEP_API_URL=f"http://127.0.0.1:{api}",
        EVERSTEP_ALLOWED_ORIGINS=address,
    )
    with log.open("wb") as out:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-euc", commands.replace("8090", str(web))),
            cwd=EXAMPLE,
            env=given,
            stdin=DEVNULL,
            stdout=out,
            stderr=STDOUT,
            start_new_session=True,
        )
    try:
        await until(
            "both are up",
            lambda: (
                {"In another terminal", "Uvicorn running"} <= {*FIRST.findall(log.read_text())}
                or shell.returncode is not None
            ),
        )
        assert shell.returncode is None, log.read_text()
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        await shell.wait()
        await until("both have ended", lambda: not is_running(shell.pid))


def is_running(group: int) -> bool:
    """Whether a process of this group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def texts(page: Page, kind: str) -> list[str]:
    return await page.locator(kind).all_text_contents()


async def test_a_person_answers_and_approves_in_two_windows(tmp_path: Path) -> None:
    """7.8.1, 8.4.1, 8.5.3, 8.6.2: text is live, people answer and approve, and a reload shows the same."""
    with data_directory() as folder:
        async with (
            application(folder) as address,
            chromium() as browser,
            a_page(browser, tmp_path) as ann,
            a_page(browser, tmp_path) as other,
        ):
            await ann.goto(address)
            await expect(ann.locator("#state")).to_have_text("live")
            await ann.get_by_role("button", name="Send").click()
            await ann.wait_for_url("**#*")
            # The first text is shown while it is written, before it is stored.
            await ann.wait_for_function(
                "(length => length > 10 && length < 100)(document.querySelector('.text')?.textContent.length)"
            )
            await other.goto(ann.url)

            await expect(other.locator(".card")).to_contain_text("Refund or replacement?")
            await other.get_by_role("button", name="refund").click()
            await expect(ann.locator(".card")).to_contain_text('refund {"number":1042,"amount":42}')
            await ann.get_by_role("button", name="Approve").click()

            for page in (ann, other):
                await expect(page.locator("#story")).to_have_attribute("data-status", "completed")
                await expect(page.locator(".card")).to_have_count(0)
                await expect(page.locator(".text").last).to_have_text(
                    "The decision about your 42 euros is stored. Thank you for your patience."
                )
            assert await texts(ann, ".user") == ["Where is my order 1042?", "refund"]
            before = [await texts(ann, kind) for kind in (".user", ".text", ".tool")]
            assert "refund: 42 euros are paid back for order 1042" in before[2]

            await ann.reload()
            await expect(ann.locator("#story")).to_have_attribute("data-status", "completed")
            await expect(ann.locator(".text")).to_have_text(before[1])
            assert [await texts(ann, kind) for kind in (".user", ".text", ".tool")] == before
            await ann.screenshot(path=tmp_path / "page.png")


def test_the_tutorial_shows_parts_of_the_program() -> None:
    program = "\n".join(path.read_text() for path in sorted(EXAMPLE.iterdir()) if path.is_file())
    blocks = re.findall(r"```(?:python no-run|js|sh)\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert [block for block in blocks if block not in program] == []
    assert len(blocks) > 5


def test_the_examples_page_lists_its_files() -> None:
    page = (EXAMPLE / "README.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(.*?)`", row)}
    assert named == {path.name for path in EXAMPLE.iterdir() if path.is_file()} - {"README.md"}
