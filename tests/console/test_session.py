"""A session on its page: live text, calls, forks, cut connections, and text that wants to run."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Locator, Page, Route, expect

from tests.console.desk import WORDS
from tests.console.payloads import PAYLOADS
from tests.console.people import SHAPES, Installation, People, axe_findings, resize, until


def begin(installation: Installation, message: str, user_id: str = "local", **more: Any) -> Any:
    """Send the first message of a session, and wait for the end of its execution or its pause."""
    with installation.api(user_id) as api:
        sent = api.post("/agent/messages", json={"content": message, **more}).json()
        path = f"/agent/executions/{sent['execution_id']}"
        until(lambda: api.get(path).json()["status"] in {"completed", "failed", "paused"})
        return sent


def thread(page: Page) -> Locator:
    return page.get_by_role("log", name="Thread")


def test_a_person_writes_reads_and_inspects(people: People) -> None:
    """16.4.1, 16.4.2: with keys only; calls are cards that unfold, and no JSON is in the thread."""
    page = people.signed_in("sessions")
    expect(page.get_by_role("button", name="New session")).to_be_visible()
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New session")
    expect(dialog.get_by_label("Agent")).to_have_value("clerk")
    dialog.get_by_label("Message").fill("export a.csv")
    dialog.get_by_label("Message").press("Control+Enter")

    card = thread(page).get_by_role("article", name="call")
    expect(card).to_contain_text("export")
    expect(card).to_contain_text("done")
    with page.expect_download() as saved:
        card.get_by_role("button", name="a.csv", exact=True).click()
    assert saved.value.suggested_filename == "a.csv"
    assert saved.value.path().read_bytes()
    expect(thread(page).get_by_role("article", name="assistant")).to_contain_text(
        "So be it: a.csv is attached"
    )
    assert "{" not in thread(page).inner_text()
    card.get_by_role("button", expanded=False).first.click()
    expect(card).to_contain_text("Arguments")
    expect(card.locator("dd")).to_contain_text(["a.csv"])

    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text("completed: the model answered without calling tools")
    inspector.get_by_role("tab", name="Because").press("ArrowRight")
    expect(inspector).to_contain_text("total tokens")
    for name, words in (
        ("State", "tool_calls"),
        ("Messages", "Choose a step to see the whole prompt"),
        ("Tools", "refund"),
        ("Events", "agent.step.started"),
    ):
        inspector.get_by_role("tab", name=name).click()
        expect(inspector).to_contain_text(words)
    second = thread(page).get_by_role("article", name="step").nth(1)
    second.hover()
    second.get_by_role("button", name="Inspect").click()
    inspector.get_by_role("tab", name="Messages").click()
    expect(inspector).to_contain_text("What the model read in step 2: 3 messages")
    inspector.get_by_text("calls export").click()
    expect(inspector.locator(".sent").nth(1)).to_contain_text("a.csv")
    inspector.get_by_role("tab", name="Tools").click()
    inspector.get_by_text("refund", exact=True).click()
    expect(inspector).to_contain_text("Pay money back")
    assert axe_findings(page) == []

    page.keyboard.press("i")
    composer = page.get_by_role("textbox", name="Message")
    expect(composer).to_be_focused()
    composer.fill("Thank you")
    composer.press("Enter")
    expect(thread(page).get_by_role("article", name="assistant").last).to_contain_text("You said: Thank you")
    expect(composer).to_have_value("")


def test_text_is_live_and_ends_as_it_is_stored_despite_a_cut(people: People) -> None:
    """16.4.3: what was typed stays, also over a reload."""
    page = people.signed_in("sessions?new=1&agent=writer")
    page.get_by_role("dialog").get_by_label("Message").fill("Write")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    draft = thread(page).get_by_role("article", name="being written")
    expect(draft).to_contain_text("word0 word1")
    page.get_by_role("textbox", name="Message").fill("What I was about to say")
    page.context.set_offline(True)
    expect(page.get_by_text("The API does not answer")).to_be_visible()
    page.context.set_offline(False)

    whole = " ".join(f"word{number}" for number in range(WORDS))
    expect(thread(page).get_by_role("article", name="assistant")).to_contain_text(whole)
    expect(draft).to_have_count(0)
    page.reload()
    expect(thread(page).get_by_role("article", name="assistant")).to_contain_text(whole)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("What I was about to say")


def test_a_request_is_decided_in_the_thread(people: People) -> None:
    """16.4.2"""
    sent = begin(people.installation, "book")
    page = people.signed_in(f"sessions/{sent['session_id']}")
    request = thread(page).get_by_role("article", name="request")
    expect(request).to_contain_text("Harbour Inn")
    request.get_by_role("button", name="Approve", exact=True).click()
    expect(request).to_contain_text("You approved it.")
    expect(thread(page).get_by_role("article", name="assistant")).to_contain_text("a room at Harbour Inn")


def test_the_text_of_a_step_stands_above_its_calls(people: People) -> None:
    """16.4.1: while the step waits for a decision, and as it was stored."""
    sent = begin(people.installation, "book aloud")
    page = people.signed_in(f"sessions/{sent['session_id']}")
    rows = thread(page).get_by_role("article")
    words = "I look for a room."

    def names() -> list[str | None]:
        return [row.get_attribute("aria-label") for row in rows.all()]

    expect(thread(page).get_by_role("article", name="text")).to_contain_text(words)
    assert names() == ["user", "text", "request"]
    thread(page).get_by_role("button", name="Approve", exact=True).click()
    expect(thread(page).get_by_role("article", name="assistant")).to_be_visible()
    assert [name for name in names() if name != "note"] == [
        *("user", "text", "request", "call", "step"),
        *("step", "assistant"),
    ]


def test_a_message_answers_the_open_question(people: People) -> None:
    """16.4.2: the composer says so, and the list of executions says what each of them waits for."""
    sent = begin(people.installation, "wonder", title="To be answered")
    page = people.signed_in(f"executions?session_id={sent['session_id']}")
    waiting = page.get_by_role("row").filter(has_text=sent["session_id"][:8])
    expect(waiting).to_contain_text("waits for an answer")
    people.show(page, f"sessions/{sent['session_id']}")
    composer = page.get_by_role("textbox", name="Message")
    composer.fill("Because of the weather")
    page.locator("form.composer").get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Your message answered the open question.")).to_be_visible()
    expect(thread(page).get_by_role("article", name="assistant")).to_contain_text("Because of the weather")


def test_a_fork_names_the_effects_that_are_not_repeated(people: People) -> None:
    """16.4.4"""
    sent = begin(people.installation, "export a.csv", title="To fork")
    page = people.signed_in(f"sessions/{sent['session_id']}")
    step = thread(page).get_by_role("article", name="step").first
    step.hover()
    step.get_by_role("button", name="Fork after this step").click()
    dialog = page.get_by_role("dialog", name="Fork after step 1")
    expect(dialog).to_contain_text("These effects stay, and are not repeated (1 call)")
    expect(dialog.get_by_role("listitem")).to_contain_text("export")
    assert axe_findings(page) == []
    dialog.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_text("Forked after step 1.")).to_be_visible()
    with people.installation.api() as api:
        found = api.get("/agent/executions", params={"session_id": sent["session_id"]}).json()["items"]
        assert len(found) == 2


def test_an_execution_shows_its_parts_over_time(people: People) -> None:
    """16.4.5"""
    sent = begin(people.installation, "send hello & export a.csv", agent="chief")
    page = people.signed_in(f"executions/{sent['execution_id']}")
    expect(page.get_by_text("completed: the model answered").first).to_be_visible()
    bars = page.get_by_role("list", name="Steps over time").get_by_role("listitem")
    expect(bars).to_have_count(4)
    bars.filter(has_text="Step 1").get_by_role("button").click()
    expect(
        page.get_by_role("complementary", name="Inspector").get_by_role("heading", name="Step 1")
    ).to_be_visible()
    assert "step=1" in page.url
    expect(page.get_by_role("link", name="chief/aide")).to_have_count(2)
    page.get_by_text("Ledger", exact=False).click()
    expect(page.get_by_text("accepted").first).to_be_visible()
    assert axe_findings(page) == []
    expect(page.get_by_role("link", name="Temporal")).to_have_attribute(
        "href", re.compile(rf"^http://127.*/workflows/agent-execution%2F{sent['execution_id']}$")
    )


def test_a_running_execution_is_steered_and_cancelled_by_the_next_message(
    people: People, tmp_path: Path
) -> None:
    """16.4.2"""
    with people.installation.api() as api:
        given = {"content": f"until {tmp_path / 'flag'}", "agent": "writer"}
        sent = api.post("/agent/messages", json=given).json()
        page = people.signed_in(f"sessions/{sent['session_id']}")
        expect(thread(page).get_by_role("article", name="being written")).to_contain_text("word0")
        way, composer = page.get_by_label("While it runs"), page.get_by_role("textbox", name="Message")
        for label, text in (("Tell the agent now", "say brief"), ("Queue", "say later")):
            way.select_option(label=label)
            composer.fill(text)
            composer.press("Enter")
            expect(composer).to_have_value("")
        way.select_option(label="Cancel and start again")
        composer.fill("say now")
        page.get_by_role("button", name="Cancel and start again").click()
        for text in ("now", "later", "brief"):
            reply = thread(page).get_by_role("article", name="assistant").filter(has_text=text)
            expect(reply).to_have_count(1)
        in_session = {"session_id": sent["session_id"]}

        def statuses() -> list[str]:
            found = api.get("/agent/executions", params=in_session).json()["items"]
            return sorted(each["status"] for each in found)

        # The execution that was cancelled had not read the message to it, which begins one of its own.
        until(lambda: statuses() == ["cancelled", "completed", "completed", "completed"])

        again = api.post(f"/agent/sessions/{sent['session_id']}/messages", json=given)
        # On a busy machine the page may still show one of the earlier executions as running.
        page.reload()
        expect(thread(page).get_by_role("article", name="being written")).to_contain_text("word0")

        def end_before(route: Route) -> None:
            route.fetch()
            route.fulfill(status=409, json={"title": "Ended", "detail": "The execution has ended"})

        # A refusal because it has ended is no error: it is what the person wanted.
        page.route("**/cancel", end_before)
        page.get_by_role("button", name="Cancel the run").click()
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        expect(page.get_by_text("has ended")).to_have_count(0)
        path = f"/agent/executions/{again.json()['execution_id']}"
        until(lambda: api.get(path).json()["status"] == "cancelled")


def test_a_session_is_renamed_and_reads_files_and_other_agents(people: People) -> None:
    """16.4.2"""
    sent = begin(people.installation, "hello", "kim", agent="clerk")
    page = people.signed_in(f"sessions/{sent['session_id']}", "kim")
    titles = list[Any]()
    page.on("request", lambda each: titles.append(each.post_data_json) if each.method == "PATCH" else None)
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").press_sequentially(" there")
    page.get_by_label("Title").press("Escape")
    expect(page.get_by_role("heading", name="hello", exact=True)).to_be_visible()
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_label("Title")).to_have_value("hello")
    page.get_by_label("Title").fill("A new name")
    # The page is drawn again while the title is being typed.
    with people.installation.api("kim") as api:
        api.post(f"/agent/sessions/{sent['session_id']}/messages", json={"content": "and now"})
    expect(thread(page).get_by_role("article", name="user")).to_have_count(2)
    expect(page.get_by_label("Title")).to_have_value("A new name")
    page.get_by_label("Title").press("Enter")
    expect(page.get_by_role("heading", name="A new name")).to_be_visible()
    assert titles == [{"title": "A new name"}]
    page.keyboard.press("v")
    expect(page.get_by_role("button", name="Fewer events")).to_be_visible()
    inspector = page.get_by_role("complementary", name="Inspector")
    for is_shown in (False, True):
        page.keyboard.press("]")
        expect(inspector).to_have_count(int(is_shown))
    page.get_by_role("img", name="of work").click()

    file: Any = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"}
    for _ in range(2):
        page.locator("input[type=file]").set_input_files([file])
        expect(page.get_by_role("button", name="Remove a.txt")).to_be_visible()
        page.get_by_role("button", name="Remove a.txt").click()
        expect(page.get_by_role("button", name="Remove a.txt")).to_have_count(0)
    page.locator("input[type=file]").set_input_files([file])
    expect(page.get_by_role("button", name="Remove a.txt")).to_be_visible()
    page.get_by_role("textbox", name="Message").fill("look")
    page.get_by_role("button", name="Send").click()
    replies = thread(page).get_by_role("article", name="assistant")
    expect(replies.last).to_contain_text("You sent: a.txt b'x'")
    page.get_by_label("Agent", exact=True).select_option("writer")
    page.get_by_role("textbox", name="Message").fill("say it is me")
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(replies.last).to_contain_text("it is me")
    with people.installation.api("kim") as api:
        found = api.get("/agent/executions", params={"session_id": sent["session_id"]}).json()["items"]
        assert [each["agent"] for each in found] == ["writer", "clerk", "clerk", "clerk"]

    people.show(page, "sessions")
    page.get_by_label("Search in titles").fill("new name")
    rows = page.get_by_role("region", name="Sessions").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_label("Status", exact=True).select_option("archived")
    expect(rows).to_have_count(0)


def test_an_execution_is_resumed_retried_forked_and_cancelled_on_its_page(people: People) -> None:
    """16.4.2, 16.4.5: and is resumed by people only if a person has paused it."""
    sent = begin(people.installation, "book")
    page = people.signed_in(f"executions/{sent['execution_id']}")
    expect(page.get_by_role("button", name="Approve", exact=False).first).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    with people.installation.api() as api:
        api.post(f"/agent/executions/{sent['execution_id']}/pause").raise_for_status()
    page.get_by_role("button", name="Approve", exact=False).first.click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("So be it: a room at Harbour Inn").first).to_be_visible()
    page.get_by_role("button", name="Fork…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    sent = begin(people.installation, "fail")
    people.show(page, f"executions/{sent['execution_id']}")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("It continues in a new execution.")).to_be_visible()
    assert sent["execution_id"] not in page.url

    sent = begin(people.installation, "refund")
    people.show(page, f"executions/{sent['execution_id']}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_text("cancelled").first).to_be_visible()
    with people.installation.api() as api:
        path = f"/agent/executions/{sent['execution_id']}"
        until(lambda: api.get(path).json()["status"] == "cancelled")


def test_an_execution_is_paused_on_its_page(people: People, tmp_path: Path) -> None:
    """16.4.2"""
    flag = tmp_path / "flag"
    with people.installation.api() as api:
        given = {"content": f"until {flag}", "agent": "writer"}
        sent = api.post("/agent/messages", json=given).json()
    page = people.signed_in(f"executions/{sent['execution_id']}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("It pauses once its running calls are done.")).to_be_visible()
    flag.touch()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("completed: the model answered").first).to_be_visible()


def test_a_stranger_sees_nothing(people: People) -> None:
    """16.4.6"""
    sent = begin(people.installation, "hello", "ann")
    page = people.signed_in(f"sessions/{sent['session_id']}", "ben")
    expect(page.get_by_role("alert")).to_contain_text("Not found")
    page.goto(f"{people.installation.console}executions/{sent['execution_id']}")
    expect(page.get_by_role("alert")).to_contain_text("Not found")
    reader = people.signed_in(f"sessions/{sent['session_id']}", "ann", "read-only")
    expect(thread(reader).get_by_role("article", name="assistant")).to_contain_text("You said: hello")
    expect(reader.get_by_role("textbox", name="Message")).to_have_count(0)


def test_text_that_wants_to_run_is_only_text(people: People) -> None:
    """16.4.7: markup, addresses and entities in messages of models and people."""
    page = people.signed_in()
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append(f"dialog {dialog.message}"))
    text = "say " + "\n\n".join(PAYLOADS)
    sent = begin(people.installation, text, agent="writer")
    people.show(page, f"sessions/{sent['session_id']}")
    reply = thread(page).get_by_role("article", name="assistant")
    expect(reply).to_contain_text("the end of the payloads")
    found: Any = page.evaluate(
        """() => {
          const root = document.querySelector('[aria-label=Thread]');
          const all = [...root.querySelectorAll('*')];
          return {
            tags: [...new Set(all.map((each) => each.localName))],
            handlers: all.flatMap((each) => each.getAttributeNames()).filter((name) => name.startsWith('on')),
            links: [...root.querySelectorAll('a')].map((each) => each.protocol),
            ran: Boolean(window.ran),
          };
        }"""
    )
    assert not found["ran"]
    assert found["handlers"] == []
    assert set(found["links"]) <= {"http:", "https:", "mailto:"}
    assert not {"script", "iframe", "img", "object", "embed", "form", "style", "base", "meta"} & set(
        found["tags"]
    )
    origin = people.installation.addresses["api_url"]
    assert [each for each in asked if not each.startswith((origin, "blob:"))] == []
    assert len(PAYLOADS) >= 30


def test_markup_that_would_hold_up_the_page_is_shown_as_text(people: People) -> None:
    """16.4.7: quotes and lists of thousands of levels, and emphasis that takes the parser seconds."""
    page = people.signed_in("sessions")
    texts = ["> " * 6000 + "one", "1. " * 4000 + "two", "_a__" * 10_000 + "three"]
    session = begin(people.installation, f"say {texts[0]}", agent="writer")["session_id"]
    with people.installation.api() as api:
        for text in texts[1:]:
            api.post(
                f"/agent/sessions/{session}/messages", json={"content": f"say {text}"}
            ).raise_for_status()
    people.show(page, f"sessions/{session}")
    replies = thread(page).get_by_role("article", name="assistant")
    for number, text in enumerate(texts):
        expect(replies.nth(number)).to_contain_text(text[-20:])
    assert page.locator("blockquote, li li li").count() == 0


def test_a_session_fits_each_width_and_theme(people: People) -> None:
    """16.1.5, 16.1.7"""
    sent = begin(people.installation, "send hello & refund", agent="chief")
    page = people.signed_in(f"sessions/{sent['session_id']}")
    for width, scheme in SHAPES:
        resize(page, width, scheme)
        expect(thread(page).get_by_role("article", name="call").first).to_be_visible()
        assert axe_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_any_part_of_a_stream_is_read_at_once(people: People) -> None:
    """16.4.8: envelopes are numbered without gaps, and callers read only their own."""
    sent = begin(people.installation, "export a.csv", "ann")
    path = f"/agent/streams/{sent['session_id']}/envelopes"
    with people.installation.api("ann") as api, people.installation.api("ben") as ben:
        whole = until(lambda: ended(api.get(path).json()))
        numbers = [each["seq"] for each in whole["items"]]
        assert numbers == list(range(1, whole["last_seq"] + 1))
        part = api.get(path, params={"after": 3, "limit": 2}).json()
        assert part["items"] == whole["items"][3:5]
        assert (part["first_seq"], part["last_seq"]) == (1, whole["last_seq"])
        assert ben.get(path).status_code == 404
        assert json.dumps(whole["items"][0]["payload"]).count("export a.csv") == 1


def ended(found: Any) -> Any:
    return found if found["items"][-1]["payload"].get("status") == "completed" else None


def test_executions_are_filtered_by_the_address_and_cancelled_together(people: People) -> None:
    """16.5.1"""
    waiting = [begin(people.installation, "refund", "eve")["execution_id"] for _ in range(2)]
    begin(people.installation, "hello", "eve")
    page = people.signed_in("executions?user_id=eve&status=paused")
    rows = page.get_by_role("region", name="Executions").locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Name of the filter").fill("Eve waits")
    page.get_by_role("button", name="Save").click()
    page.get_by_label("Status", exact=True).select_option("completed")
    expect(rows).to_have_count(1)
    assert "status=completed" in page.url
    page.get_by_role("link", name="Eve waits").click()
    expect(rows).to_have_count(2)
    page.get_by_role("combobox", name="Agent", exact=True).select_option("writer")
    expect(rows).to_have_count(0)
    page.get_by_role("combobox", name="Agent", exact=True).select_option("clerk")
    page.get_by_role("combobox", name="Time", exact=True).select_option(index=1)
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Remove Eve waits").click()
    expect(page.get_by_role("link", name="Eve waits")).to_have_count(0)
    page.get_by_text("Columns").click()
    page.get_by_label("Tokens").uncheck()
    expect(page.get_by_role("columnheader", name="Tokens")).to_have_count(0)
    page.get_by_text("Columns").click()

    page.keyboard.press("j")
    page.keyboard.press("x")
    rows.nth(1).get_by_role("checkbox").check()
    page.get_by_role("button", name="Cancel them").click()
    expect(page.get_by_text("2 executions cancelled.")).to_be_visible()
    expect(rows).to_have_count(0)
    with people.installation.api() as api:
        assert [api.get(f"/agent/executions/{each}").json()["status"] for each in waiting] == [
            "cancelled"
        ] * 2
    page.get_by_role("button", name="Clear").click()
    assert urlsplit(page.url).query == ""


def test_what_was_said_is_found_and_opened_at_its_place(people: People) -> None:
    """16.6.12"""
    for number in range(3):
        begin(people.installation, f"say quokka number {number} 🦘 <b>quokka</b>", "fay")
    sent = begin(people.installation, "refund", "fay")
    page = people.signed_in("sessions")
    page.get_by_role("link", name="Search messages").click()
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()
    field = page.get_by_label("Search messages, calls and results")
    expect(page.get_by_role("region", name="Executions")).to_be_visible()
    page.keyboard.press("/")
    expect(field).to_be_focused()
    page.keyboard.type('quokka "number 2"')
    hits = page.get_by_role("list", name="Matches").get_by_role("listitem")
    expect(hits).to_have_count(2)
    assert parse_qs(urlsplit(page.url).query)["q"] == ['quokka "number 2"']
    assert hits.nth(1).locator("mark").all_inner_texts() == ["quokka", "number 2", "quokka"]
    assert axe_findings(page) == []
    page.get_by_role("button", name="Executions", exact=True).click()
    expect(page.get_by_role("region", name="Executions").locator("tbody tr")).to_have_count(1)

    page.goto(f"{people.installation.console}executions?user_id=fay&q=refund+80")
    hit = hits.filter(has_text="euros")
    expect(hit).to_have_count(1)
    hit.get_by_role("link").click()
    expect(page.locator(".row.request.selected")).to_contain_text("refund")
    assert urlsplit(page.url).path.endswith(f"/sessions/{sent['session_id']}")
    page.go_back()
    field.fill("-refund")
    expect(page.get_by_role("alert")).to_contain_text("names no word")
    field.fill("wallaby")
    expect(page.get_by_text("Nothing matches")).to_be_visible()


def test_usage_shows_latency_by_day_and_by_agent(people: People) -> None:
    """16.5.4"""
    begin(people.installation, "hello", "gil")
    page = people.signed_in("usage")
    page.get_by_label("Measure").select_option("Duration of steps, p95")
    expect(page.get_by_role("figure", name="Duration of steps, p95 by day")).to_be_visible()
    row = page.get_by_role("region", name="Usage by agent").locator("tbody tr", has_text="clerk")
    expect(row.locator("td").last).to_have_text(re.compile(r"^[\d.]+ m?s / [\d.]+ m?s$"))
    page.get_by_label("Group").select_option("By model")
    expect(page.get_by_role("region", name="Usage by model")).to_be_visible()
    page.get_by_label("Time").select_option("Last 7 days")
    assert "days=7" in page.url
    tenants = page.get_by_label("Group").locator("option", has_text="tenant")
    assert tenants.count() == 1
    assert axe_findings(page) == []
    manager = people.signed_in("usage", "max", "sessions:all")
    expect(manager.get_by_label("Group")).to_be_visible()
    assert manager.get_by_label("Group").locator("option", has_text="tenant").count() == 0


def test_a_slider_shows_what_another_limit_would_have_changed(people: People) -> None:
    """16.5.2"""
    sent = begin(people.installation, "export a.csv")
    page = people.signed_in("what-if")
    page.get_by_role("checkbox", name="Maximum steps").check()
    page.get_by_role("slider", name="Maximum steps").fill("1")
    row = page.get_by_role("row").filter(has_text=sent["execution_id"][:8])
    expect(row).to_contain_text("earlier")
    expect(row).to_contain_text("step 1")
    assert "max_steps=1" in page.url
    row.get_by_role("button", name="Save as test…").click()
    saved = page.get_by_role("dialog", name="Save as a test")
    assert axe_findings(page) == []
    with page.expect_download() as download:
        saved.get_by_role("link", name="test_clerk_").click()
    assert "def test_" in download.value.path().read_text()
    expect(saved).to_contain_text(f"pytest tests/runs/{download.value.suggested_filename}")


def test_policies_are_changed_over_one_execution(people: People) -> None:
    """16.5.5: from its page, with the right of the person."""
    sent = begin(people.installation, "export a.csv")
    page = people.signed_in(f"executions/{sent['execution_id']}")
    page.get_by_role("link", name="What if…").click()
    page.get_by_label("After a failure").select_option("retry_all")
    expect(page.get_by_text("This execution would have ended as it did.")).to_be_visible()
    page.get_by_role("checkbox", name="Budget in steps").check()
    page.get_by_label("Budget in steps, exact").fill("1")
    page.get_by_label("Budget in steps, exact").press("Enter")
    expect(page.get_by_text("This execution would have ended differently.")).to_be_visible()
    page.get_by_role("checkbox", name="tokens", exact=True).check()
    assert "error_policy=retry_all&budget_steps=1&without=TokenUsageLimit" in page.url
    page.reload()
    expect(page.get_by_text("This execution would have ended differently.")).to_be_visible()
    assert axe_findings(page) == []

    ann = people.signed_in(page.url.removeprefix(people.installation.console), "ann")
    expect(ann.get_by_text("The execution does not exist, or you may not see it.")).to_be_visible()
    expect(ann.get_by_role("button", name="Save as test…")).to_have_count(0)


def test_two_executions_are_compared_and_an_agent_is_tried(people: People) -> None:
    """16.5.3, 16.5.4"""
    one, two = (begin(people.installation, f"export {name}")["execution_id"] for name in ("a.csv", "b.csv"))
    page = people.signed_in("compare")
    page.get_by_label("Execution", exact=True).fill(one)
    page.get_by_label("Compared with").fill(two)
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("steps differ.")).to_be_visible()
    expect(page.locator("del").filter(has_text="a.csv").first).to_be_visible()
    assert axe_findings(page) == []

    page.goto(f"{people.installation.console}agents/clerk")
    page.get_by_text("refund").first.click()
    expect(page.get_by_text("euros").first).to_be_visible()
    definitions = page.get_by_role("region", name="Definitions over time").locator("tbody tr")
    expect(definitions).to_contain_text("current")
    with people.installation.api("stranger") as api:
        assert api.get("/agent/agents/clerk").json()["definitions"] == []
    page.get_by_label("Try it in debug mode").fill("hello")
    page.get_by_role("button", name="Run").click()
    expect(thread(page).get_by_role("article", name="assistant")).to_contain_text("You said: hello")
    inspector = page.get_by_role("complementary", name="Inspector")
    inspector.get_by_role("tab", name="State").click()
    inspector.get_by_role("combobox", name="State").select_option(index=0)
    expect(inspector.locator(".values").first).to_be_visible()
    page.get_by_role("link", name="Usage").click()
    expect(page.get_by_role("region", name="Usage by agent")).to_contain_text("clerk")


def test_the_state_of_the_installation_is_shown_to_its_operators(people: People) -> None:
    """16.5.6"""
    page = people.signed_in("system")
    worker = page.get_by_role("region", name="Workers").locator("tbody tr")
    expect(worker).to_contain_text("works")
    expect(worker).to_contain_text(re.compile(r"\d+ of [\d,]+"))
    expect(page.get_by_role("region", name="Gateways").locator("tbody tr").first).to_contain_text("ws://")
    expect(page.get_by_role("region", name="Queues")).to_contain_text("model and tool calls")
    expect(page.get_by_role("region", name="Retention")).to_contain_text("keep_answers_days")
    expect(page.get_by_text("a worker answers on 'everstep'")).to_be_visible()
    assert axe_findings(page) == []

    ann = people.signed_in("system", "ann")
    expect(ann.get_by_text("shown to people with the scope admin")).to_be_visible()
    expect(ann.get_by_role("region", name="Parts")).to_contain_text("database")
    api = people.installation.api
    with api("ann") as user, api("max", "sessions:all", "approve") as manager, api("eve", "admin") as admin:
        for path in ("/agent/system", "/agent/system/checks"):
            assert [each.get(path).status_code for each in (user, manager, admin)] == [403, 403, 200]
