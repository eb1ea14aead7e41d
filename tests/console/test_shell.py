"""Signing in, moving around by mouse, keys and addresses, themes, and what is said when the API is away."""

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from playwright.sync_api import Route, expect

from tests.console.people import SHAPES, People, axe_findings, resize, until

HEBREW = "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd"


def test_a_link_signs_in_and_a_reload_stays_signed_in(people: People) -> None:
    """16.2.1: the code leaves the address bar; the link that was used says what to do."""
    link = people.installation.addresses["console_url"]
    page = people.page()
    page.goto(link)
    expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
    assert page.url == people.installation.console
    page.reload()
    expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("y")
    expect(page.get_by_role("region", name="Workers")).to_be_visible()

    other = people.page()
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("The link was used or has expired")
    assert axe_findings(other) == []


def test_a_person_moves_by_keys_and_addresses(people: People) -> None:
    """16.1.4"""
    page = people.signed_in("agents")
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    expect(page).to_have_title("Agents · Everstep")
    page.keyboard.press("g")
    page.keyboard.press("e")
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()
    page.get_by_role("link", name="System").click()
    expect(page.get_by_role("row", name=re.compile("database"))).to_contain_text("works")
    page.go_back()
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Needs you")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.goto(people.installation.console + "nothing/here")
    expect(page.get_by_role("alert")).to_contain_text("This page does not exist")


def test_the_theme_is_chosen_and_kept(people: People) -> None:
    """16.1.5"""
    page = people.signed_in("agents", scheme="light")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Theme: system").click()
    assert page.evaluate(ground) == light
    page.keyboard.press("t")
    assert (dark := page.evaluate(ground)) != light
    page.reload()
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    assert page.evaluate(ground) == dark


def test_an_expired_session_says_so_over_the_page(people: People) -> None:
    """16.2.6: the page stays as it is, and what was sent is sent again after signing in."""
    page = people.signed_in("sessions", "liz")
    page.get_by_role("button", name="New session").click()
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_label("Message").fill("A long letter")
    page.context.clear_cookies()
    dialog.get_by_role("button", name="Send").click()

    again = page.get_by_role("dialog", name="Sign in again")
    expect(again).to_contain_text("What you typed is still here")
    again.get_by_label("Token or key").fill(people.installation.token("liz"))
    again.get_by_role("button", name="Sign in").click()
    expect(again).to_have_count(0)
    with people.installation.api("liz") as api:
        sent = until(lambda: api.get("/agent/sessions").json()["items"])
    assert [each["title"] for each in sent] == ["A long letter"]


def test_what_one_person_typed_is_not_sent_by_another(people: People) -> None:
    """16.2.6"""
    page = people.signed_in("sessions", "kay")
    page.get_by_role("button", name="New session").click()
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_label("Message").fill("A secret letter")
    page.context.clear_cookies()
    dialog.get_by_role("button", name="Send").click()
    again = page.get_by_role("dialog", name="Sign in again")
    again.get_by_label("Token or key").fill(people.installation.token("gus"))
    again.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("No sessions")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    for name in ("kay", "gus"):
        with people.installation.api(name) as api:
            assert api.get("/agent/sessions").json()["items"] == []


def test_a_person_signs_in_with_an_identity_provider(people: People) -> None:
    """16.2.5: the page sends a challenge, checks the state, and exchanges the code with its verifier."""
    api, page = people.installation.addresses["api_url"], people.page()
    provider = {"authorization_endpoint": f"{api}/docs", "client_id": "console", "scope": "openid"}
    sent: dict[str, Any] = {}

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            found = route.fetch()
            route.fulfill(response=found, json=found.json() | {"provider": provider})
            return
        posted: Any = route.request.post_data_json
        sent.update(posted["provider"])
        route.continue_(post_data=json.dumps({"token": people.installation.token("ann")}))

    page.route("**/sign-in", answer)
    page.goto(people.installation.console + "agents?x=1")
    page.get_by_role("button", name="Sign in with your organization").click()
    page.wait_for_url(f"{api}/docs?**")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}
    assert (asked["client_id"], asked["scope"], asked["response_type"]) == ("console", "openid", "code")
    page.goto(f"{asked['redirect_uri']}?code=c&state=another")
    expect(page.get_by_role("alert")).to_contain_text("was not started in this browser")
    assert not sent

    page.goto(people.installation.console + "agents?x=1")
    page.get_by_role("button", name="Sign in with your organization").click()
    page.wait_for_url(f"{api}/docs?**")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}
    page.goto(f"{asked['redirect_uri']}?code=c&state={asked['state']}")
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    assert page.url == f"{people.installation.console}agents?x=1"
    challenge = base64.urlsafe_b64encode(hashlib.sha256(sent["verifier"].encode()).digest())
    assert asked["code_challenge"] == challenge.decode().rstrip("=")
    assert (sent["code"], sent["redirect_uri"]) == ("c", asked["redirect_uri"])


def test_a_person_signs_out(people: People) -> None:
    """16.2.2"""
    page = people.signed_in("agents")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token or key")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token or key")).to_be_visible()


def test_an_api_that_does_not_answer_is_reported(people: People) -> None:
    """16.1.6"""
    page = people.signed_in("executions")
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()
    page.context.set_offline(True)
    expect(page.get_by_role("alert").first).to_contain_text("The API does not answer")
    page.context.set_offline(False)
    expect(page.get_by_text("The API does not answer")).to_have_count(0)


def test_every_screen_is_accessible_at_every_width_and_in_both_themes(people: People) -> None:
    """16.1.5, 16.1.7: also with headings of any level, text from right to left, and combining characters."""
    with people.installation.api() as api:
        text = f"say ### Third\n\n# First\n\n{HEBREW}\n\ne\u0301\u0302\u0303"
        sent = api.post("/agent/messages", json={"content": text, "agent": "writer"}).json()
        execution = f"/agent/executions/{sent['execution_id']}"
        until(lambda: api.get(execution).json()["status"] == "completed")
        # An execution of two steps, which a limit of one would have ended.
        longer = api.post("/agent/messages", json={"content": "export a.csv"}).json()["execution_id"]
        until(lambda: api.get(f"/agent/executions/{longer}").json()["status"] == "completed")
        waiting = api.post("/agent/messages", json={"content": "refund"}).json()["execution_id"]
        (request,) = until(lambda: api.get(f"/agent/executions/{waiting}/requests").json()["items"])
    both = f"{sent['execution_id']}/{waiting}"
    page = people.signed_in()
    for place, heading in (
        ("", "Needs you"),
        ("sessions", "Sessions"),
        ("executions", "Executions"),
        ("agents", "Agents"),
        ("what-if?max_steps=1", "What-if"),
        ("compare", "Compare"),
        ("usage", "Usage"),
        ("agents/clerk", "clerk"),
        ("system", "System"),
        (f"executions/{waiting}", "Steps"),
        (f"compare/{both}", "Compare"),
        (f"requests/{request['id']}", "Call refund?"),
        (f"sessions/{sent['session_id']}?inspect=off", "Third"),
    ):
        page.set_viewport_size({"width": 1440, "height": 900})
        people.show(page, place)
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        if place.startswith("what-if"):
            expect(page.get_by_role("region", name="Executions that would differ")).to_be_visible()
        for width, scheme in SHAPES:
            resize(page, width, scheme)
            assert axe_findings(page) == [], (place, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (place, width)
    page.get_by_role("textbox", name="Message").fill(HEBREW)
    hebrew = page.get_by_role("log", name="Thread").get_by_text(HEBREW, exact=True).last
    for element in (page.get_by_role("textbox", name="Message"), hebrew):
        assert element.evaluate("(element) => getComputedStyle(element).direction") == "rtl"


class _OtherApplication(BaseHTTPRequestHandler):
    """A web application of an agent, at another port of the same host."""

    received: ClassVar[list[str]] = []
    guessed: ClassVar[list[str]] = []
    """The cookies that it overwrites."""

    def do_GET(self) -> None:
        """Keep the cookies of the browser."""
        self.received.append(self.headers["Cookie"] or "")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        for name in self.guessed:
            self.send_header("Set-Cookie", f"{name}=taken; HttpOnly")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Mine</title>")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- as in the base class
        """Print nothing."""


def test_another_port_of_the_host_cannot_use_the_session(people: People) -> None:
    """16.2.2: browsers send it the cookie, which is useless without the page key of the console's origin."""
    page = people.signed_in("agents")
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    api = people.installation.addresses["api_url"]
    _OtherApplication.guessed = ["everstep", f"everstep-{api.rpartition(':')[2]}"]
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherApplication) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        expect(page).to_have_title("Mine")
        storage = page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        server.shutdown()
    cookie = _OtherApplication.received[0]
    assert cookie.startswith("everstep-")
    assert "everstep" not in storage
    for path, method in (("/agent/inbox", "GET"), ("/agent/gateway/ticket", "POST")):
        answer = httpx2.request(method, api + path, headers={"Cookie": cookie, "Origin": api})
        assert answer.status_code == 401, answer.text
    page.goto(people.installation.console + "agents")
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()


def test_a_person_ends_other_sessions_and_signs_out_everywhere(people: People) -> None:
    """16.2.8"""
    page, other, third = (people.signed_in("agents", "hal") for _ in range(3))
    for each in (page, other, third):
        expect(each.get_by_role("heading", name="Agents")).to_be_visible()
    page.get_by_role("button", name="hal").click()
    dialog = page.get_by_role("dialog", name="Signed in as hal")
    browsers = dialog.get_by_role("list", name="Browsers").get_by_role("listitem")
    expect(browsers).to_have_count(3)
    expect(browsers.filter(has_text="this browser")).to_contain_text("Chrome on Linux")
    assert axe_findings(page) == []
    browsers.get_by_role("button", name="End").first.click()
    expect(browsers).to_have_count(2)
    dialog.get_by_role("button", name="Sign out everywhere").click()
    expect(page.get_by_label("Token or key")).to_be_visible()
    for each in (other, third):
        each.reload()
        expect(each.get_by_label("Token or key")).to_be_visible()
