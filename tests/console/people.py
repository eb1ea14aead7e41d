"""People with browsers, and the installation that they look at."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import httpx2
from playwright.sync_api import Browser, Page, expect

from everstep.agent_domain.capabilities.rights import OWN_SCOPES
from everstep.http_api.tokens import sign_token
from everstep.runtime.local_secret import find_local_secret
from tests.acceptance.harness import ROOT, environment
from tests.console.types import LOCK
from tests.node import installed_modules
from tests.services import data_directory

DEADLINE: Final = 60.0
"""Seconds after which a wait for a page fails."""

expect.set_options(timeout=DEADLINE * 1000)

PAGE_KEY: Final = "everstep.page-key./"
"""Where the console keeps the key of its origin."""

SHAPES: Final[tuple[tuple[int, Literal["light", "dark"]], ...]] = ((1440, "light"), (360, "dark"))
"""Widths of a page, and its themes."""

EVERSTEP = Path(sys.executable).parent / "everstep"
AGENTS = "tests.console.desk:agents"
T = TypeVar("T")

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.effectiveDirective} forbids ${event.blockedURI} ${event.sample}`));
"""


@dataclass(frozen=True)
class Installation:
    """A running `everstep up`."""

    data: Path
    addresses: Mapping[str, str]

    @property
    def console(self) -> str:
        """The address of the console."""
        return f"{self.addresses['api_url']}/console/"

    def token(self, user_id: str, *scopes: str) -> str:
        """A token of a person."""
        secret = find_local_secret(self.data)
        assert secret is not None
        return sign_token(secret, user_id, scope=" ".join(scopes))

    def api(self, user_id: str = "local", *scopes: str) -> httpx2.Client:
        """A client of the HTTP API."""
        granted = scopes or (OWN_SCOPES if user_id == "local" else ())
        headers = {"Authorization": f"Bearer {self.token(user_id, *granted)}"}
        return httpx2.Client(base_url=self.addresses["api_url"], headers=headers, timeout=DEADLINE)


@contextmanager
def open_installation(everstep: Path = EVERSTEP) -> Generator[Installation]:
    """Run `everstep up` within the block, by this command."""
    with data_directory() as data:
        ports = [f"--{name}-port=0" for name in ("http", "gateway", "temporal", "ui")]
        command = [str(everstep), f"--data={data}", f"--agents={AGENTS}", "up", "--json", *ports]
        up = subprocess.Popen(  # noqa: S603 -- fixed command
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        try:
            assert up.stdout
            yield Installation(data, json.loads(up.stdout.readline()))
        finally:
            up.terminate()
            up.wait(DEADLINE)
            if up.stdout:
                up.stdout.close()


@dataclass
class Processes:
    """An API, a gateway and a worker of their own, on the servers of an installation, which can be killed."""

    everstep: Path
    installation: Installation
    ports: Mapping[str, int]
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, subprocess.Popen[bytes]])

    def __post_init__(self) -> None:
        for name in ("worker", "gateway", "api"):
            self.start(name)

    @property
    def served(self) -> Installation:
        """The installation as this API serves it."""
        url = f"http://127.0.0.1:{self.ports['api']}"
        return Installation(self.installation.data, {**self.installation.addresses, "api_url": url})

    def start(self, name: str) -> None:
        """Start a process; an API and a gateway answer when this returns."""
        given = environment(
            EVERSTEP_TASK_QUEUE="losses", EVERSTEP_GATEWAY_URL=f"ws://127.0.0.1:{self.ports['gateway']}"
        )
        port = [f"--port={self.ports[name]}"] if name in self.ports else []
        command = [str(self.everstep), f"--data={self.installation.data}", f"--agents={AGENTS}", name, *port]
        self._running[name] = subprocess.Popen(  # noqa: S603 -- fixed command
            command, cwd=ROOT, env=given, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        if name in self.ports:
            until(partial(_is_ready, self.ports[name]))

    def kill(self, name: str) -> None:
        """Kill a process, which has no time to say anything."""
        process = self._running.pop(name)
        process.kill()
        process.wait(DEADLINE)

    def close(self) -> None:
        """Kill all."""
        for name in tuple(self._running):
            self.kill(name)


def _is_ready(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz").is_success
    except httpx2.TransportError:
        return False


class Profiles:
    """Profiles of a browser, each with one page, which tests use one after the other.

    To load the console again on such a page takes a quarter of the CPU time that a new profile needs, with
    its processes and empty caches.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._idle: list[Page] = []
        self._reported: dict[Page, list[str]] = {}

    def take(self) -> Page:
        """A page without cookies and stored data, whose profile no other test uses now."""
        return self._idle.pop() if self._idle else self._new_page()

    def put_back(self, page: Page, idle: str) -> list[str]:
        """Remove what a test left in a profile, show an idle page, and return what the page reported.

        The idle page is of the same host, so that the next page needs no new process of the browser.
        """
        reported = self._reported[page]
        if page.url.startswith("http"):
            reported += page.evaluate("window.violations ?? []")
        self._reported[page] = []
        for other in page.context.pages:
            if other is not page:
                other.close()
        page.context.set_offline(False)
        page.context.clear_cookies()
        page.unroute_all()
        page.goto(idle)
        self._idle.append(page)
        return reported

    def _new_page(self) -> Page:
        context = self._browser.new_context(reduced_motion="reduce")
        context.set_default_timeout(DEADLINE * 1000)
        context.add_init_script(_WATCH)
        page = context.new_page()
        self._reported[page] = []
        page.on("pageerror", lambda error: self._reported[page].append(f"an exception: {error}"))
        page.on("console", lambda message: self._on_console(page, message))
        return page

    def _on_console(self, page: Page, message: Any) -> None:
        # Chromium reports each answer that is an error; whether it should be one is for the test to say.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self._reported[page].append(message.text)


@dataclass
class People:
    """Opens pages for people, and collects what the pages report."""

    installation: Installation
    profiles: Profiles
    pictures: Path = Path(".")
    violations: list[str] = field(default_factory=list[str])
    _pages: list[Page] = field(default_factory=list[Page])

    @property
    def _idle(self) -> str:
        """A page without programs."""
        return f"{self.installation.console}static/icon.svg"

    def page(self, *, width: int = 1440, height: int = 900, scheme: Any = "light") -> Page:
        """A page of a person who is not signed in."""
        page = self.profiles.take()
        self._pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        # An image of the console's origin: storage belongs to an origin, and tests begin with an empty one.
        page.goto(self._idle)
        page.evaluate("localStorage.clear(), sessionStorage.clear()")
        return page

    def signed_in(self, place: str = "", user_id: str = "local", *scopes: str, **how: Any) -> Page:
        """A page of a person who is signed in, at a place of the console."""
        page = self.page(**how)
        granted = scopes or (OWN_SCOPES if user_id == "local" else ())
        origin = self.installation.addresses["api_url"]
        sent = {"token": self.installation.token(user_id, *granted)}
        answer = page.request.post(f"{origin}/sign-in", data=sent, headers={"Origin": origin})
        assert answer.ok, answer.text()
        page.evaluate("([name, key]) => { localStorage[name] = key }", [PAGE_KEY, answer.json()["page_key"]])
        page.goto(self.installation.console + place)
        return page

    def show(self, page: Page, place: str) -> None:
        """Show another place as a link does, which takes a fraction of the CPU time that loading takes."""
        page.evaluate(
            "(url) => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')) }",
            self.installation.console + place,
        )

    def keep_pictures(self) -> None:
        """Store what the pages look like, for the report of a failed test."""
        for number, page in enumerate(self._pages):
            page.screenshot(path=self.pictures / f"page-{number}.png")

    def close(self) -> None:
        """Leave all pages to other tests, and collect what they reported and what their policies forbade."""
        while self._pages:
            self.violations += self.profiles.put_back(self._pages.pop(), self._idle)


def resize(page: Page, width: int, scheme: Literal["light", "dark"]) -> None:
    """Show a page at another width and in a theme."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)


def until(find: Callable[[], T]) -> T:
    """What this finds, once it finds something: of another process, which sends no signal."""
    deadline = time.monotonic() + DEADLINE
    while not (found := find()):
        assert time.monotonic() < deadline, "nothing was found in time"
        # Each search costs the CPU time of a request.
        time.sleep(0.15)
    return found


def axe_findings(page: Page) -> list[str]:
    """What axe finds on the page as it is now."""
    if not page.evaluate("'axe' in window"):
        page.evaluate((installed_modules(LOCK) / "axe-core" / "axe.min.js").read_text())
    result: Any = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]
