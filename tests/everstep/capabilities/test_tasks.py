"""`todo_write` and its reminders, in runs."""

import asyncio
from typing import Any

import pytest

from everstep.agent_domain.capabilities.tasks import TodoPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.tasks import UseTaskPlanning
from tests.everstep.capabilities.agent_words import LOOKS, an_agent, messages_of_request, results, run

ONE = {"content": " Compare offers ", "status": "in_progress", "activeForm": "Comparing offers"}
TWO = {"content": "Book", "status": "pending", "activeForm": "Booking"}
DONE = {"content": "Ask", "status": "completed", "activeForm": "Asking"}
QUIET = TodoPolicy(render_every_steps=0, reminder_every_steps=0)


def todo_call(*todos: Any) -> InferenceResponse:
    return calls(("todo_write", {"todos": list(todos)}))


def reminders(model: ScriptedModel, marker: str) -> dict[int, str]:
    """The messages with this marker, by the number of the step that they precede."""
    found: dict[int, str] = {}
    for index, request in enumerate(model.requests, 1):
        for message in request.messages:
            if message.is_user and message.text.startswith(marker) and message.text not in found.values():
                found[index] = message.text
    return found


# The tool.


async def test_the_list_is_replaced_and_stored_after_the_step() -> None:
    """9.3.1, 9.3.2: trimmed; the model reads rendered, a newline and summary; the value is a map."""
    both = calls(("todo_write", {"todos": [ONE, TWO, DONE]}), ("metadata_read", {"key": "tasks"}))
    reads = calls(("metadata_read", {"key": "tasks"}))

    state, _ = await run(both, reads, "Done", having=[UseTaskPlanning(QUIET), UseMetadataTools()])

    rendered = "1. ◐ Comparing offers\n2. ○ Book\n3. ● Ask"
    summary = "Done: 1 of 3, in progress: 1, pending: 1"
    kept = [{**ONE, "content": "Compare offers"}, TWO, DONE]
    written, too_early, later = results(state)
    assert written == f"{rendered}\n{summary}"
    assert too_early == "Error: Nothing is stored under 'tasks'. There are no keys yet"
    assert later.startswith('[{"content":"Compare offers"')
    assert state.steps[0].tool_executions[0].result == {
        "success": True,
        "tasks": kept,
        "summary": summary,
        "rendered": rendered,
    }
    assert state.metadata == {"tasks": kept}


async def test_an_empty_list_clears_it() -> None:
    """9.3.1, 9.3.2: may be empty."""
    state, _ = await run(todo_call(ONE), todo_call(), "Done", having=[UseTaskPlanning(QUIET)])

    assert results(state)[1] == "(no tasks)\nDone: 0 of 0, in progress: 0, pending: 0"
    assert state.metadata == {"tasks": []}


async def test_of_two_lists_in_one_step_the_last_stays() -> None:
    """9.3.2: in the order of the response, also when they run concurrently."""
    twice = calls(("todo_write", {"todos": [ONE]}), ("todo_write", {"todos": [TWO]}))
    state, _ = await run(twice, "Done", having=[UseTaskPlanning(QUIET)])
    assert state.metadata == {"tasks": [TWO]}


@pytest.mark.parametrize(
    ("todos", "failure"),
    [
        ([TWO, {**ONE, "content": " "}], "Task #2 needs a non-blank 'content'"),
        ([{**ONE, "status": None}], "Task #1 needs a 'status': pending, in_progress or completed"),
        (
            [{**ONE, "status": "doing"}],
            "Task #1 has an unknown 'status', use pending, in_progress or completed",
        ),
        (
            [{**ONE, "activeForm": 5}],
            "Task #1 needs a non-blank 'activeForm', the task as it is being done "
            "(such as 'Comparing the offers')",
        ),
        ([TWO] * 21, "At most 20 tasks fit in the list, you sent 21"),
        ([ONE, ONE], "At most 1 task may be in_progress, you sent 2"),
        ("buy milk", "Pass 'todos' as a list of tasks; an empty list clears it"),
        (None, "Pass 'todos' as a list of tasks; an empty list clears it"),
        ({"content": "a"}, "Pass 'todos' as a list of tasks; an empty list clears it"),
        ([5], "Task #1 needs a non-blank 'content'"),
    ],
)
async def test_an_invalid_list_fails_and_changes_nothing(todos: Any, failure: str) -> None:
    """9.3.1, 9.3.2"""
    wrong = calls(("todo_write", {"todos": todos}))
    agent = an_agent(ScriptedModel(todo_call(TWO), wrong), UseTaskPlanning(QUIET), max_steps=2)

    state = await agent.arun("Plan a trip")

    assert results(state)[1] == f"Error: {failure}"
    assert state.steps[1].tool_executions[0].has_error
    assert state.metadata == {"tasks": [TWO]}


async def test_a_policy_sets_the_limits() -> None:
    """9.3.1: the plural, where more than one may be in progress."""
    policy = TodoPolicy(max_items=3, max_in_progress=2, render_every_steps=0, reminder_every_steps=0)
    state, _ = await run(todo_call(ONE, ONE, ONE), having=[UseTaskPlanning(policy)], max_steps=1)
    assert results(state) == ["Error: At most 2 tasks may be in_progress, you sent 3"]


async def test_tasks_may_be_in_any_language() -> None:
    """9.3.2: characters are stored unchanged."""
    task = {"content": "计划 🧳", "status": "pending", "activeForm": "计划中"}
    state, _ = await run(todo_call(task), "Done", having=[UseTaskPlanning(QUIET)])
    assert results(state)[0].startswith("1. ○ 计划 🧳\n")


def test_every_field_of_the_schema_is_required() -> None:
    """9.3.1, 5.4.3"""
    agent = an_agent(ScriptedModel(), UseTaskPlanning())
    schema = agent.definition.tools.get("todo_write").schema
    assert schema["properties"]["todos"]["items"]["required"] == ["content", "status", "activeForm"]
    with pytest.raises(InvalidInput, match="max_items"):
        UseTaskPlanning(TodoPolicy(max_items=0))


# The reminders.


async def test_the_agent_is_reminded_to_plan_once_in_a_conversation() -> None:
    """9.3.3: at step count 0, and no such marker yet."""
    model = ScriptedModel(LOOKS, "Done", "Done again")
    agent = an_agent(model, UseTaskPlanning(QUIET))

    state = await agent.arun("Plan a trip")
    state = await agent.arun(state.with_user_message("And another one"))

    marker = "<todo-reminder-initial>"
    first = messages_of_request(model, 0)
    assert [message.is_user for message in first] == [True, True]
    assert first[1].text.startswith(f"{marker}\n")
    assert "todo_write" in first[1].text
    assert sum(message.text.startswith(marker) for message in state.messages) == 1


@pytest.mark.parametrize(
    ("every", "planned", "nags"),
    [
        (3, (), {4: 3, 7: 6}),
        (3, (4,), {4: 3, 8: 3}),
        (3, (1, 2), {6: 3}),
        (2, (3,), {3: 2, 6: 2, 8: 4}),
        (1, (2,), {2: 1, 4: 1, 5: 2, 6: 3, 7: 4, 8: 5}),
        (0, (), {}),
        (-1, (), {}),
    ],
)
async def test_the_agent_is_reminded_of_a_neglected_list(
    every: int, planned: tuple[int, ...], nags: dict[int, int]
) -> None:
    """9.3.3: before a step, at multiples of reminder_every_steps since the last todo_write, or the start."""
    script = [todo_call(ONE) if number in planned else LOOKS for number in range(1, 8)]
    policy = TodoPolicy(render_every_steps=0, reminder_every_steps=every)

    state, _ = await run(*script, "Done", having=[UseTaskPlanning(policy)])

    asked = {
        index + 1: step.input_messages[-1].text
        for index, step in enumerate(state.steps)
        if step.input_messages[-1].text.startswith("<todo-reminder-nag>")
    }
    assert asked.keys() == nags.keys()
    for number, since in nags.items():
        assert f"No todo_write call for {since}+ steps" in asked[number]


@pytest.mark.parametrize(
    ("every", "planned", "shown"),
    [
        (3, (1,), {4, 7}),
        (3, (3,), {7}),
        (3, (1, 6), {4}),
        (3, (), set[int]()),
        (0, (1,), set[int]()),
        (1, (1,), {3, 4, 5, 6, 7, 8}),
    ],
)
async def test_the_list_is_shown_at_intervals(every: int, planned: tuple[int, ...], shown: set[int]) -> None:
    """9.3.3: after a step whose count is a multiple, unless it called todo_write or there are no tasks."""
    script = [todo_call(ONE) if number in planned else LOOKS for number in range(1, 8)]
    policy = TodoPolicy(render_every_steps=every, reminder_every_steps=0)

    state, _ = await run(*script, "Done", having=[UseTaskPlanning(policy)])

    last = {index + 1: step.input_messages[-1].text for index, step in enumerate(state.steps)}
    render = "<todo-render>\n1. ◐ Comparing offers\nDone: 0 of 1, in progress: 1, pending: 0\n</todo-render>"
    assert {number for number, text in last.items() if text == render} == shown
    assert not any(text.startswith("<todo-render>") for text in last.values() if text != render)


async def test_a_cleared_list_is_not_shown() -> None:
    """9.3.3: there are no tasks."""
    policy = TodoPolicy(render_every_steps=1, reminder_every_steps=0)
    _, model = await run(todo_call(ONE), todo_call(), LOOKS, "Done", having=[UseTaskPlanning(policy)])
    assert reminders(model, "<todo-render>") == {}


async def test_a_list_shown_after_the_answer_requests_no_further_step() -> None:
    """9.3.3, 2.5: the answer stays final."""
    policy = TodoPolicy(render_every_steps=2, reminder_every_steps=0)
    state, model = await run(todo_call(ONE), "Done", having=[UseTaskPlanning(policy)])
    assert state.messages[-1].text.startswith("<todo-render>")
    assert (state.final_response, len(model.requests)) == ("Done", 2)


async def test_the_steps_of_another_execution_do_not_count() -> None:
    """9.3.3: since the last todo_write or the start of this one."""
    policy = TodoPolicy(render_every_steps=0, reminder_every_steps=2)
    model = ScriptedModel(LOOKS, "Done", LOOKS, "Done")
    agent = an_agent(model, UseTaskPlanning(policy))

    state = await agent.arun("Plan a trip")
    await agent.arun(state.with_user_message("Again"))

    assert reminders(model, "<todo-reminder-nag>") == {}


async def test_two_runs_of_one_agent_keep_their_own_lists() -> None:
    """9.3.2: the list belongs to the conversation."""
    agent = an_agent(ScriptedModel(todo_call(ONE), todo_call(TWO), "Done"), UseTaskPlanning(QUIET))
    first, second = await asyncio.gather(agent.arun("One"), agent.arun("Two"))
    assert {str(first.metadata["tasks"][0]["content"]), str(second.metadata["tasks"][0]["content"])} == {
        "Compare offers",
        "Book",
    }
