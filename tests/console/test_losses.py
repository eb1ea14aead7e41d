"""What people see while processes are lost, behind a proxy, and with very long texts."""

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.acceptance.front import a_free_port
from tests.console.desk import MEGABYTE, WORDS
from tests.console.people import Installation, People, Processes, Profiles, until
from tests.programs import NAME

WHOLE = " ".join(f"word{number}" for number in range(WORDS))


@pytest.fixture
def processes(installation: Installation, programs: Path) -> Generator[Processes]:
    """Processes that can be killed."""
    processes = Processes(programs / NAME, installation, {"api": a_free_port(), "gateway": a_free_port()})
    try:
        yield processes
    finally:
        processes.close()


def thread(page: Page) -> Locator:
    return page.get_by_role("log", name="Thread")


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def begin(page: Page, message: str) -> None:
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_label("Message").fill(message)
    dialog.get_by_role("button", name="Send").click()


def words(draft: Locator) -> int:
    """How many words are shown."""
    found = re.findall(r"word(\d+)", draft.inner_text()) if draft.count() else []
    return len(found) if found == [str(number) for number in range(len(found))] else -1


def writer(draft: Locator) -> str:
    """The process that writes, by the text that is shown."""
    found = re.search(r"By (\d+):", draft.inner_text()) if draft.count() else None
    return found[1] if found else ""


@pytest.mark.timeout(300)
def test_text_that_streams_survives_the_loss_of_each_process(
    processes: Processes, profiles: Profiles, tmp_path: Path
) -> None:
    """16.4.9: and what was sent while the API was lost arrives once."""
    people = People(processes.served, profiles, tmp_path)
    page = people.signed_in("sessions?new=1&agent=writer")
    begin(page, f"until {tmp_path / 'enough'}")
    draft = thread(page).get_by_role("article", name="being written")
    expect(draft).to_contain_text("word0 word1")
    processes.kill("gateway")
    expect(page.get_by_text("reconnecting")).to_be_visible()
    before = words(draft)
    processes.start("gateway")
    until(lambda: words(draft) > before)

    processes.kill("worker")
    lost = writer(draft)
    processes.start("worker")
    # Another attempt begins: its text replaces that of the first one.
    until(lambda: writer(draft) not in {lost, ""})
    processes.kill("api")
    expect(page.get_by_text("The API does not answer").first).to_be_visible()
    composer(page).fill("say thank you")
    composer(page).press("Enter")
    expect(page.get_by_role("status").get_by_text("what you typed is kept")).to_be_visible()
    expect(composer(page)).to_have_value("say thank you")
    processes.start("api")
    expect(page.get_by_text("The API does not answer. This page")).to_have_count(0)
    composer(page).press("Enter")
    expect(composer(page)).to_have_value("")

    (tmp_path / "enough").touch()
    replies = thread(page).get_by_role("article", name="assistant")
    expect(replies).to_have_count(2)
    expect(draft).to_have_count(0)
    assert words(replies.first) > 0
    expect(replies.last).to_contain_text("thank you")
    expect(thread(page).get_by_role("article", name="user")).to_have_count(2)
    shown = replies.all_inner_texts()
    page.reload()
    expect(replies).to_have_count(2)
    assert replies.all_inner_texts() == shown
    people.close()
    # Chromium reports each attempt to connect to the lost gateway.
    assert [each for each in people.violations if "WebSocket connection" not in each] == []


def roles(found: Any) -> list[str]:
    return [each["role"] for each in found["items"]]


def test_a_page_that_slept_shows_what_happened(people: People) -> None:
    """16.4.9: as after a laptop's sleep, programs of the page do not run, and the connection is lost."""
    page = people.signed_in("sessions?new=1&agent=writer")
    begin(page, "Write")
    expect(thread(page).get_by_role("article", name="being written")).to_contain_text("word0 word1")
    session = page.url.rsplit("/", 1)[-1].split("?")[0]
    tools: Any = page.context.new_cdp_session(page)
    page.context.set_offline(True)
    tools.send("Page.setWebLifecycleState", {"state": "frozen"})
    with people.installation.api() as api:
        path = f"/agent/sessions/{session}/messages"
        until(lambda: roles(api.get(path).json()).count("assistant") == 1)
        api.post(path, json={"content": "say good morning"}).raise_for_status()
        until(lambda: roles(api.get(path).json()).count("assistant") == 2)
    page.context.set_offline(False)
    tools.send("Page.setWebLifecycleState", {"state": "active"})
    replies = thread(page).get_by_role("article", name="assistant")
    expect(replies).to_have_count(2)
    expect(replies.first).to_contain_text(WHOLE)
    expect(replies.last).to_contain_text("good morning")


def test_a_message_of_a_megabyte_is_kept_sent_as_a_file_and_read(people: People) -> None:
    """16.4.10"""
    page = people.signed_in("sessions?new=1&agent=writer")
    begin(page, "a megabyte")
    reply = thread(page).get_by_role("article", name="assistant")
    expect(reply).to_contain_text("the end")
    # The page is still quick: a key is answered within a few frames.
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible(timeout=3000)
    page.keyboard.press("Escape")

    composer(page).fill("long " * (MEGABYTE // 5))
    expect(page.get_by_text("at most 200,000 can be sent")).to_be_visible()
    page.reload()
    expect(page.get_by_text("at most 200,000 can be sent")).to_be_visible()
    page.get_by_role("button", name="Attach it as a file").click()
    expect(composer(page)).to_have_value("")
    composer(page).fill("say read it")
    composer(page).press("Enter")
    expect(thread(page).get_by_role("article", name="user").last).to_contain_text("message.txt")


PREFIX = "/tools/agents"


@contextmanager
def open_proxy(target: str) -> Generator[str]:
    """A proxy that serves the API below a path, which it removes."""

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name != "Connection"}
            answer = httpx2.request(
                self.command, target + self.path.removeprefix(PREFIX), headers=headers, content=body
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name not in {"content-encoding", "content-length", "transfer-encoding", "date", "server"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PATCH = do_DELETE = forward  # noqa: N815 -- the names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- of the base class
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_the_console_works_below_the_path_of_a_proxy(people: People) -> None:
    """16.1.1: signing in, live text, links and deep links."""
    with open_proxy(people.installation.addresses["api_url"]) as root:
        page = people.page()
        page.goto(f"{root}/")
        assert page.url == f"{root}/console/"
        page.get_by_label("Token or key").fill(people.installation.token("ann"))
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
        (cookie,) = page.context.cookies(f"{root}/agent/inbox")
        assert cookie.get("httpOnly")
        page.get_by_role("link", name="Sessions").click()
        page.get_by_role("button", name="New session").click()
        page.get_by_role("dialog").get_by_label("Agent").select_option("writer")
        begin(page, "Write")
        expect(thread(page).get_by_role("article", name="being written")).to_contain_text("word0 word1")
        assert page.url.startswith(f"{root}/console/sessions/")
        page.reload()
        expect(thread(page).get_by_role("article", name="assistant")).to_contain_text(WHOLE)
        page.get_by_role("complementary", name="Inspector").get_by_role("link").first.click()
        expect(page.get_by_role("list", name="Steps over time")).to_be_visible()
        assert page.url.startswith(f"{root}/console/executions/")
