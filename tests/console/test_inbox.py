"""What needs a person: questions, approvals with edited arguments, budgets, and two people at one request."""

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.console.people import SHAPES, Installation, People, axe_findings, resize, until


def ask(installation: Installation, message: str, user_id: str = "local", **more: Any) -> Any:
    """Send a message, and return the request that its execution waits for."""
    with installation.api(user_id) as api:
        sent = api.post("/agent/messages", json={"content": message, **more}).json()
        path = f"/agent/executions/{sent['execution_id']}/requests"
        return until(lambda: api.get(path).json()["items"])[0]


def request_now(installation: Installation, request: Any) -> Any:
    with installation.api() as api:
        return api.get(f"/agent/requests/{request['id']}").json()


def approve_as_joe(installation: Installation, request: Any) -> None:
    with installation.api("joe", "approve") as api:
        path = f"/agent/executions/{request['execution_id']}/approvals/{request['id']}"
        api.post(path, json={"decision": "approve", "args_digest": request["args_digest"]}).raise_for_status()


def detail(page: Page) -> Locator:
    return page.locator(".inbox-detail")


def test_an_approval_is_edited_and_decided_with_keys_only(people: People) -> None:
    """16.3.1, 16.3.2: the form follows the tool's schema, and shows what the edit changes."""
    request = ask(people.installation, "refund")
    page = people.signed_in("system")
    expect(page.get_by_role("heading", name="System")).to_be_visible()
    for key in ("g", "n"):
        page.keyboard.press(key)
    expect(detail(page).get_by_role("heading", name="Call refund?")).to_be_visible()
    page.keyboard.press("e")
    field = detail(page).get_by_label("euros")
    expect(field).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("8.5")
    expect(detail(page)).to_contain_text("Type a whole number.")
    page.keyboard.press("Control+A")
    page.keyboard.type("8")
    changes = detail(page).get_by_label("Changes")
    expect(changes.locator("del")).to_have_text("80")
    expect(changes.locator("ins")).to_have_text("8")
    assert axe_findings(page) == []
    page.keyboard.press("Enter")

    expect(detail(page)).to_contain_text("You approved it with other arguments.")
    decided = request_now(people.installation, request)
    assert (decided["decision"], decided["edited_args"]) == ("edit", {"euros": 8})
    assert decided["decided_by"]["subject"] == "local"


def test_a_denial_has_a_reason_that_survives_a_reload(people: People) -> None:
    """16.3.3: what was typed is kept in the browser until it is sent."""
    request = ask(people.installation, "refund")
    page = people.signed_in(f"requests/{request['id']}")
    expect(detail(page).get_by_role("button", name="Deny…")).to_be_visible()
    page.keyboard.press("d")
    detail(page).get_by_label("Reason").fill("Too late")
    page.reload()
    expect(detail(page).get_by_label("Reason")).to_have_value("Too late")
    detail(page).get_by_label("Reason").press("Control+Enter")
    expect(detail(page)).to_contain_text("You denied it: Too late")
    assert request_now(people.installation, request)["reason"] == "Too late"


def test_a_remembered_approval_is_a_sentence(people: People) -> None:
    """16.3.2"""
    request = ask(people.installation, "book")
    page = people.signed_in(f"requests/{request['id']}")
    detail(page).get_by_label("Later calls").select_option(label="approve if the text arguments are the same")
    expect(detail(page)).to_contain_text("approved without asking if hotel matches “Harbour Inn”")
    detail(page).get_by_label("Later calls").select_option(label="approve all calls of book")
    expect(detail(page)).to_contain_text("Every later call of book in this execution is approved")
    page.keyboard.press("Escape")
    detail(page).get_by_role("button", name="Approve", exact=False).first.click()
    expect(detail(page)).to_contain_text("You approved it.")


def test_questions_are_answered_by_choice_form_and_text(people: People) -> None:
    """16.3.1"""
    choice, form, text = (ask(people.installation, word) for word in ("ask", "form", "wonder"))
    page = people.signed_in(f"requests/{choice['id']}")
    expect(detail(page).get_by_role("button", name="Monday")).to_be_visible()
    page.keyboard.press("2")
    expect(detail(page)).to_contain_text("You answered it.")

    people.show(page, f"requests/{form['id']}")
    detail(page).get_by_label("seats").fill("4")
    detail(page).get_by_role("button", name="Answer").click()
    expect(detail(page)).to_contain_text("You answered it.")

    people.show(page, f"requests/{text['id']}")
    detail(page).get_by_label("Your answer").fill("שלום, because")
    detail(page).get_by_role("button", name="Answer").click()
    expect(detail(page)).to_contain_text("You answered it.")
    for request in (choice, form, text):
        assert request_now(people.installation, request)["decision"] == "answer"


def test_of_two_people_the_first_one_decides(people: People) -> None:
    """16.3.4: the second one is told who was first, and what the decision was."""
    request = ask(people.installation, "refund", "ann")
    ann = people.signed_in(f"requests/{request['id']}", "ann")
    ben = people.signed_in(f"requests/{request['id']}", "ben", "approve")
    late = people.signed_in(f"requests/{request['id']}", "cid", "approve")
    expect(detail(ann)).to_contain_text("It waits for people with the scope approve.")
    expect(detail(ann).get_by_role("button", name="Approve")).to_have_count(0)
    expect(detail(ben).get_by_role("button", name="Edit…")).to_have_count(0)
    expect(detail(late).get_by_role("button", name="Approve")).to_be_visible()
    # The late one does not see the decision before deciding.
    late.route("**/agent/inbox*", lambda route: route.abort())

    detail(ben).get_by_role("button", name="Approve").first.click()
    expect(detail(ben)).to_contain_text("You approved it.")
    expect(detail(ann)).to_contain_text("ben approved it.")
    detail(late).get_by_role("button", name="Approve").first.click()
    expect(late.get_by_text("Someone else decided first. ben approved it.")).to_be_visible()

    stranger = people.signed_in(f"requests/{request['id']}", "dan")
    missing = "This request does not exist, or you may not see it."
    expect(stranger.get_by_role("alert")).to_contain_text(missing)


def test_the_request_that_is_shown_does_not_change_under_the_keys(people: People) -> None:
    """16.3.4: a key never decides about a request that has just taken the place of another one."""
    for _ in range(2):
        ask(people.installation, "refund", "gil")
    page = people.signed_in("", "ivy", "approve")
    expect(detail(page).get_by_role("button", name="Approve")).to_be_visible()
    with people.installation.api("joe", "approve") as api:
        first, second = api.get("/agent/inbox").json()["items"][:2]
    approve_as_joe(people.installation, first)
    expect(detail(page)).to_contain_text("joe approved it.")
    page.keyboard.press("a")
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(second["id"]))
    expect(detail(page).get_by_role("button", name="Approve")).to_be_visible()
    assert request_now(people.installation, second)["state"] == "open"
    # The next test looks at an empty inbox.
    approve_as_joe(people.installation, second)


def test_several_approvals_are_decided_at_once(people: People) -> None:
    """16.3.1: and the list is live, oldest first."""
    page = people.signed_in()
    requests = [ask(people.installation, "refund") for _ in range(2)]
    rows = page.get_by_role("list", name="For you to decide").locator("li").filter(has_text="Call refund?")
    expect(rows).to_have_count(2)
    for number in range(2):
        rows.nth(number).get_by_role("checkbox").check()
    batch = page.get_by_role("group", name="Batch")
    expect(batch).to_contain_text("2 chosen")
    batch.get_by_role("button", name="Approve all").click()
    expect(page.get_by_text("2 approved.")).to_be_visible()
    expect(rows).to_have_count(0)
    assert [request_now(people.installation, each)["decision"] for each in requests] == ["approve"] * 2


def test_several_approvals_are_chosen_by_key_and_denied(people: People) -> None:
    """16.3.1"""
    requests = [ask(people.installation, "refund", "lou") for _ in range(2)]
    page = people.signed_in(f"requests/{requests[0]['id']}")
    batch = page.get_by_role("group", name="Batch")
    expect(detail(page).get_by_role("button", name="Deny…")).to_be_visible()
    page.keyboard.press("x")
    expect(batch).to_contain_text("1 chosen")
    batch.get_by_role("button", name="Clear").click()
    expect(batch).to_have_count(0)
    page.keyboard.press("x")
    rows = page.get_by_role("list", name="For you to decide").locator("li").filter(has_text="Call refund?")
    rows.last.get_by_role("checkbox").check()
    expect(batch).to_contain_text("2 chosen")
    batch.get_by_role("button", name="Deny all").click()
    expect(page.get_by_text("2 denied.")).to_be_visible()
    assert [request_now(people.installation, each)["decision"] for each in requests] == ["deny"] * 2


def test_an_exhausted_budget_is_raised(people: People) -> None:
    """16.3.1"""
    request = ask(people.installation, "export a.csv", budget={"steps": 1, "on_exhausted": "ask"})
    assert request["kind"] == "budget"
    page = people.signed_in(f"requests/{request['id']}")
    expect(detail(page)).to_contain_text("1 steps of 1 steps")
    detail(page).get_by_label("New total in steps").fill("9")
    detail(page).get_by_role("button", name="Raise").click()
    expect(detail(page)).to_contain_text("raised the budget")


def test_the_inbox_fits_each_width_and_theme(people: People) -> None:
    """16.1.5, 16.1.7"""
    request, own = (ask(people.installation, word) for word in ("wire", "book"))
    page = people.signed_in(f"requests/{request['id']}")
    for width, scheme in SHAPES:
        resize(page, width, scheme)
        people.show(page, f"requests/{request['id']}")
        expect(detail(page)).to_contain_text("Another person has to decide")
        assert axe_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        people.show(page, f"requests/{own['id']}")
        expect(detail(page).get_by_label("Later calls")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
