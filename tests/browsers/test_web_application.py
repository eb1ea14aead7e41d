"""The application of `examples/06_web_application`, over a local installation, in Chromium."""

import re
from pathlib import Path

from playwright.async_api import Page, expect

from tests.acceptance.harness import DEADLINE, ROOT
from tests.browsers.chromium import a_page, chromium
from tests.browsers.web_application import EXAMPLE, application
from tests.services import data_directory

TUTORIAL = ROOT / "docs" / "tutorials" / "web-application.md"

expect.set_options(timeout=DEADLINE * 1000)


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
                await expect(page.locator("#status")).to_have_text("completed")
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
