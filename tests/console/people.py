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
from typing import Any, Final, TypeVar

import httpx2
from playwright.sync_api import Browser, BrowserContext, Page, expect

from everstep.http_api.tokens import sign_token
from everstep.runtime.local_secret import find_local_secret
from tests.acceptance.harness import ROOT, environment
from tests.console.types import LOCK
from tests.node import installed_modules
from tests.services import data_directory

DEADLINE: Final = 30.0
"""Seconds after which a wait for a page fails."""

expect.set_options(timeout=DEADLINE * 1000)

_KEEP = """
if (location.origin === "{origin}") localStorage["everstep.page-key./"] ??= "{key}";
"""

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
        granted = scopes or (("sessions:all", "approve", "approve:edit") if user_id == "local" else ())
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


@dataclass
class People:
    """Opens pages for people, and collects what the pages report."""

    installation: Installation
    browser: Browser
    pictures: Path = Path(".")
    violations: list[str] = field(default_factory=list[str])
    _contexts: list[BrowserContext] = field(default_factory=list[BrowserContext])

    def page(self, *, width: int = 1440, height: int = 900, scheme: Any = "light") -> Page:
        """A page of a person who is not signed in."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.set_default_timeout(DEADLINE * 1000)
        context.add_init_script(_WATCH)
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.violations.append(f"an exception: {error}"))
        page.on("console", self._on_console)
        return page

    def signed_in(self, place: str = "", user_id: str = "local", *scopes: str, **how: Any) -> Page:
        """A page of a person who is signed in, at a place of the console."""
        page = self.page(**how)
        granted = scopes or (("sessions:all", "approve", "approve:edit") if user_id == "local" else ())
        origin = self.installation.addresses["api_url"]
        sent = {"token": self.installation.token(user_id, *granted)}
        answer = page.request.post(f"{origin}/sign-in", data=sent, headers={"Origin": origin})
        assert answer.ok, answer.text()
        page.add_init_script(_KEEP.format(origin=origin, key=answer.json()["page_key"]))
        page.goto(self.installation.console + place)
        return page

    def _on_console(self, message: Any) -> None:
        # Chromium reports each answer that is an error; whether it should be one is for the test to say.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.violations.append(message.text)

    def keep_pictures(self) -> None:
        """Store what the pages look like, for the report of a failed test."""
        for number, page in enumerate(page for context in self._contexts for page in context.pages):
            page.screenshot(path=self.pictures / f"page-{number}.png")

    def close(self) -> None:
        """Close all pages, after collecting what their policies forbade."""
        for context in self._contexts:
            for page in context.pages:
                if page.url.startswith("http"):
                    self.violations += page.evaluate("window.violations ?? []")
            context.close()


def until(find: Callable[[], T]) -> T:
    """What this finds, once it finds something: of another process, which sends no signal."""
    deadline = time.monotonic() + DEADLINE
    while not (found := find()):
        assert time.monotonic() < deadline, "nothing was found in time"
        time.sleep(0.05)
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
