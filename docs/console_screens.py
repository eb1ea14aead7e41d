"""Makes the pictures of docs/console.md: each screen in light and dark, from a local installation.

make screens
"""

from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect, sync_playwright

from tests.browsers.chromium import chromium_path
from tests.console.people import Installation, People, Profiles, open_installation, until

SCREENS: Final = Path(__file__).parent / "screens"
WIDTH, HEIGHT = 1280, 760

PLAN: Final = """say ## Bergen on Friday

The **8:25** is the best choice:

| train | arrives | euros |
|---|---|--:|
| 8:25 | 15:02 | 74 |
| 12:03 | 18:40 | 96 |

I can book it as soon as you confirm the *name* of the traveller."""


def fill(installation: Installation) -> dict[str, str]:
    """Let agents work and ask; return the addresses of the screens by name."""
    with installation.api() as api:

        def send(content: str, session: str | None = None, **more: Any) -> Any:
            path = f"/agent/sessions/{session}/messages" if session else "/agent/messages"
            sent = api.post(path, json={"content": content, **more}).json()
            execution = f"/agent/executions/{sent['execution_id']}"
            until(lambda: api.get(execution).json()["status"] in {"completed", "failed", "paused"})
            return sent

        first = send("send hello & export report.csv", agent="chief", title="A report, and a trip to Bergen")
        session = first["session_id"]
        send(PLAN, session, agent="writer")
        for message in ("refund", "ask", "form", "book", "hello", "fail"):
            send(message)
        send("refund", session)
        other = send("export report.csv", agent="chief")
        (asked, *_) = [each for each in api.get("/agent/inbox").json()["items"] if each["tool"] == "refund"]
    return {
        "inbox": f"requests/{asked['id']}",
        "sessions": "sessions",
        "session": f"sessions/{session}",
        "executions": "executions",
        "search": "executions?q=bergen+OR+euros",
        "execution": f"executions/{first['execution_id']}?step=1",
        "what-if": "what-if?max_steps=1",
        "compare": f"compare/{first['execution_id']}/{other['execution_id']}",
        "usage": "usage?measure=executions",
        "agent": "agents/clerk",
        "system": "system",
    }


def take(page: Page, address: str, picture: Path) -> None:
    """Store what a screen looks like once nothing is loading."""
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.wait_for_load_state("networkidle")
    expect(page.get_by_text("not reported")).to_have_count(0)
    page.screenshot(path=picture)


def main() -> None:
    """Make all pictures."""
    with open_installation() as installation, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path())
        people = People(installation, Profiles(browser))
        places = fill(installation)
        for scheme in ("light", "dark"):
            page = people.signed_in("system", scheme=scheme, width=WIDTH, height=HEIGHT)
            for name, place in places.items():
                take(page, installation.console + place, SCREENS / f"console-{name}-{scheme}.png")
        people.close()
        browser.close()


if __name__ == "__main__":
    main()
