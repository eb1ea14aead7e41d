"""How fast the console jumps in a session of 50,000 envelopes, its memory, and the first paint of screens.

    make console

A jump changes the scroll position to another place of the whole session. Measured are the time from one
frame to the next, and the time of scripts for it. It exits with 1 if a limit is missed.
"""

import os
import random
import statistics
import sys
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from playwright.sync_api import Page, expect, sync_playwright

from tests.browsers.chromium import chromium_path
from tests.console.people import Installation, People, Profiles, open_installation, until

ENVELOPES: Final = 50_000
JUMPS: Final = 60
LOADS: Final = 5
"""How often each screen is opened."""

LIMITS: Final[Mapping[str, float]] = {
    # A frame of 60 a second takes 16.7 ms.
    "frame p50 (ms)": 17.0,
    "frame max (ms)": 34.0,
    "script p50 (ms)": 8.0,
    "first paint (ms)": 300.0,
    "heap (MB)": 60.0,
}

_COPY = """
    INSERT INTO agent_envelopes (stream_id, seq, id, tenant_id, type, execution_id, payload, created_at)
    SELECT stream_id, n * %(last)s + seq, gen_random_uuid(), tenant_id, type, execution_id, payload,
           created_at + n * interval '1 second'
      FROM agent_envelopes, generate_series(1, %(copies)s) AS n
     WHERE stream_id = %(stream)s AND seq <= %(last)s
"""
_HEAD = """
    UPDATE agent_streams
       SET head = (SELECT max(seq) FROM agent_envelopes WHERE stream_id = %(stream)s)
     WHERE stream_id = %(stream)s
"""

_JUMP = """
async (share) => {
  const list = document.querySelector('[role=log]');
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  const before = await frame();
  list.scrollTop = share * (list.scrollHeight - list.clientHeight);
  return (await frame()) - before;
}
"""


def long_session(installation: Installation) -> str:
    """A session whose stream has the envelopes of one execution many times over."""
    with installation.api() as api:
        sent = api.post("/agent/messages", json={"content": "export a.csv"}).json()
        session, path = str(sent["session_id"]), f"/agent/executions/{sent['execution_id']}"
        until(lambda: api.get(path).json()["status"] == "completed")
        last = api.get(f"/agent/streams/{session}/envelopes").json()["last_seq"]
    url = installation.addresses["database_url"].replace("postgresql+psycopg", "postgresql")
    values = {"stream": session, "last": last, "copies": ENVELOPES // last}
    with psycopg.connect(url) as connection:
        connection.execute(_COPY, values)
        connection.execute(_HEAD, values)
    return session


def metric(tools: Any, name: str) -> float:
    """A metric of the page's process."""
    found: Any = tools.send("Performance.getMetrics")
    return next(each["value"] for each in found["metrics"] if each["name"] == name)


def measure(page: Page, session: str, console: str) -> dict[str, float]:
    """Open the session, jump, and return the figures."""
    # The types of its messages are those of the browser.
    tools: Any = page.context.new_cdp_session(page)
    tools.send("Performance.enable")
    page.goto(f"{console}sessions/{session}?inspect=off")
    page.get_by_role("log", name="Thread").get_by_role("article").first.wait_for()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    places, frames, scripts = random.Random(17), list[float](), list[float]()  # noqa: S311 -- no secret
    for _ in range(JUMPS):
        before = metric(tools, "ScriptDuration")
        frames.append(page.evaluate(_JUMP, places.random()))
        scripts.append((metric(tools, "ScriptDuration") - before) * 1000)
        # What the jump asked for is there before the next one.
        expect(page.locator(".block-loading")).to_have_count(0)
    tools.send("HeapProfiler.collectGarbage")
    return {
        "frame p50 (ms)": statistics.median(frames),
        "frame max (ms)": max(frames),
        "script p50 (ms)": statistics.median(scripts),
        "first paint (ms)": paint,
        "heap (MB)": metric(tools, "JSHeapUsedSize") / 1e6,
    }


_TIMES = """
async () => {
  const paint = () => performance.getEntriesByName('first-contentful-paint')[0];
  const isReady = () => document.querySelector('h1') && !document.querySelector('main .loading');
  while (!paint() || !isReady()) await new Promise(requestAnimationFrame);
  return [paint().startTime, performance.now()];
}
"""


def first_paints(page: Page, session: str, installation: Installation) -> dict[str, tuple[float, float]]:
    """Open every screen; return the times of its first paint, and until nothing is loading, in milliseconds.

    Each is the median of some loads, as after following a link from elsewhere: the files are in the cache of
    the browser, and it asks for each whether it has changed.
    """
    with installation.api() as api:
        execution = api.get("/agent/executions", params={"session_id": session}).json()["items"][0]["id"]
    found: dict[str, tuple[float, float]] = {}
    for name, place in {
        "needs you": "",
        "sessions": "sessions",
        "session": f"sessions/{session}",
        "executions": "executions",
        "execution": f"executions/{execution}",
        "what-if": "what-if?max_steps=1",
        "compare": f"compare/{execution}/{execution}",
        "usage": "usage",
        "agents": "agents",
        "agent": "agents/clerk",
        "system": "system",
    }.items():
        paints, ready = list[float](), list[float]()
        for _ in range(LOADS):
            page.goto(installation.console + place, wait_until="commit")
            paint, loaded = page.evaluate(_TIMES)
            paints.append(paint)
            ready.append(loaded)
        found[name] = statistics.median(paints), statistics.median(ready)
    return found


def print_first_paints(paints: Mapping[str, tuple[float, float]]) -> bool:
    """Print the times of all screens; return whether one is over the limit."""
    limit = LIMITS["first paint (ms)"]
    print(f"{'screen':<12} {'first paint':>12} {'loaded':>8}  (ms, limit {limit:g} for the paint)")
    for name, (paint, ready) in paints.items():
        print(f"{name:<12} {paint:12.0f} {ready:8.0f}{'   MISSED' if paint > limit else ''}")
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return any(paint > limit for paint, _ in paints.values())


def main() -> int:
    """Measure, print the figures with their limits, and return 1 if one is missed."""
    with open_installation() as installation, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path())
        session = long_session(installation)
        people = People(installation, Profiles(browser))
        page = people.signed_in("system")
        figures = measure(page, session, installation.console)
        paints = first_paints(page, session, installation)
        people.close()
        browser.close()
    missed = [name for name, limit in LIMITS.items() if figures[name] > limit]
    for name, limit in LIMITS.items():
        print(f"{name:<18} {figures[name]:8.1f}   limit {limit:g}{'   MISSED' if name in missed else ''}")
    return print_first_paints(paints) or bool(missed)


if __name__ == "__main__":
    sys.exit(main())
