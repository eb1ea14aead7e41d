from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.tasks import (
    Task,
    TaskList,
    TaskStatus,
    TodoPolicy,
    due_listing,
    due_reminder,
    initial_reminder,
    parse_tasks,
    steps_since_call,
)
from everstep.agent_domain.errors import InvalidInput

POLICY = TodoPolicy()


def a_task(
    content: str = "Compare offers", status: str = "pending", active: str = "Comparing offers"
) -> dict[str, Any]:
    return {"content": content, "status": status, "activeForm": active}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in a_task().items() if name != key}


THREE = parse_tasks(
    [
        a_task("Ask", "completed", "Asking"),
        a_task("Compare", "in_progress", "Comparing"),
        a_task("Buy", active="Buying"),
    ],
    POLICY,
)


def test_the_defaults_of_the_policy() -> None:
    """9.3.1: TodoPolicy."""
    assert TodoPolicy(20, 1, render_every_steps=10, reminder_every_steps=10) == POLICY


def test_tasks_are_trimmed() -> None:
    """9.3.1: trimmed."""
    tasks = parse_tasks([a_task(" Ask ", " pending\n", "\tAsking ")], POLICY)
    assert tasks == TaskList((Task("Ask", TaskStatus.PENDING, "Asking"),))


def test_the_list_may_be_empty() -> None:
    """9.3.1: may be empty."""
    assert parse_tasks([], POLICY) == TaskList()


NEEDS_CONTENT = "Task #1 needs a non-blank 'content'"
NEEDS_STATUS = "Task #1 needs a 'status': pending, in_progress or completed"
UNKNOWN_STATUS = "Task #1 has an unknown 'status', use pending, in_progress or completed"
NEEDS_ACTIVE_FORM = (
    "Task #1 needs a non-blank 'activeForm', the task as it is being done (such as 'Comparing the offers')"
)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (without("content"), NEEDS_CONTENT),
        (a_task(" "), NEEDS_CONTENT),
        ({**a_task(), "content": 5}, NEEDS_CONTENT),
        ("Compare offers", NEEDS_CONTENT),
        (None, NEEDS_CONTENT),
        (without("status"), NEEDS_STATUS),
        (a_task(status=" "), NEEDS_STATUS),
        ({**a_task(), "status": None}, NEEDS_STATUS),
        (a_task(status="done"), UNKNOWN_STATUS),
        (a_task(status="Pending"), UNKNOWN_STATUS),
        ({**a_task(), "status": 1}, UNKNOWN_STATUS),
        (without("activeForm"), NEEDS_ACTIVE_FORM),
        (a_task(active="\n"), NEEDS_ACTIVE_FORM),
        ({}, NEEDS_CONTENT),
        ({"content": "x"}, NEEDS_STATUS),
        ({"content": "x", "status": "x"}, UNKNOWN_STATUS),
    ],
)
def test_a_task_that_lacks_something_is_refused(task: object, message: str) -> None:
    """9.3.1: the failures, in the order of the fields."""
    with pytest.raises(InvalidInput) as refused:
        parse_tasks([task], POLICY)
    assert str(refused.value) == message


def test_the_failure_names_the_number_of_the_task() -> None:
    """9.3.1: `Task #{i}` counts from 1."""
    with pytest.raises(InvalidInput, match=r"^Task #3 needs a non-blank 'content'$"):
        parse_tasks([a_task(), a_task(), a_task("")], POLICY)


def test_too_many_tasks_are_refused() -> None:
    """9.3.1: `At most {max} tasks fit in the list, you sent {n}`."""
    assert len(parse_tasks([a_task()] * 20, POLICY).tasks) == 20
    with pytest.raises(InvalidInput, match=r"^At most 20 tasks fit in the list, you sent 21$"):
        parse_tasks([a_task()] * 21, POLICY)


@pytest.mark.parametrize(
    ("maximum", "message"),
    [
        (0, "At most 0 tasks may be in_progress, you sent 3"),
        (1, "At most 1 task may be in_progress, you sent 3"),
        (2, "At most 2 tasks may be in_progress, you sent 3"),
    ],
)
def test_too_many_tasks_at_once_are_refused(maximum: int, message: str) -> None:
    """9.3.1: `tasks` when max ≠ 1."""
    with pytest.raises(InvalidInput) as refused:
        parse_tasks([a_task(status="in_progress")] * 3, TodoPolicy(max_in_progress=maximum))
    assert str(refused.value) == message


def test_each_task_is_checked_before_their_number() -> None:
    """9.3.1: the order of the failures."""
    with pytest.raises(InvalidInput, match="Task #21"):
        parse_tasks([*[a_task(status="in_progress")] * 20, {}], POLICY)
    with pytest.raises(InvalidInput, match="fit in the list"):
        parse_tasks([a_task(status="in_progress")] * 21, POLICY)


@pytest.mark.parametrize("todos", [None, "x", {"content": "x"}, 5])
def test_todos_must_be_a_list(todos: object) -> None:
    """9.3.1: todos [...]."""
    with pytest.raises(InvalidInput, match="Pass 'todos' as a list"):
        parse_tasks(todos, POLICY)


@pytest.mark.parametrize("change", [{"max_items": 0}, {"max_in_progress": -1}, {"render_every_steps": 0.5}])
def test_a_meaningless_policy_is_refused(change: dict[str, Any]) -> None:
    """9.3.1: the error gives advice."""
    with pytest.raises(InvalidInput):
        TodoPolicy(**change)


def test_the_model_reads_the_rendered_list_and_its_summary() -> None:
    """9.3.2: rendered + newline + summary."""
    assert str(THREE) == "1. ● Ask\n2. ◐ Comparing\n3. ○ Buy\nDone: 1 of 3, in progress: 1, pending: 1"


def test_an_empty_list_has_no_tasks() -> None:
    """9.3.2: empty `(no tasks)`."""
    assert str(TaskList()) == "(no tasks)\nDone: 0 of 0, in progress: 0, pending: 0"


def test_the_result_carries_the_tasks_as_they_were_sent() -> None:
    """9.3.2: {success, tasks, summary, rendered}."""
    assert parse_tasks([a_task()], POLICY).to_dict() == {
        "success": True,
        "tasks": [a_task()],
        "summary": "Done: 0 of 1, in progress: 0, pending: 1",
        "rendered": "1. ○ Compare offers",
    }


def test_tasks_are_kept_in_the_metadata() -> None:
    """9.3.2: kept under metadata `tasks`."""
    assert TaskList.from_metadata({"tasks": THREE.to_metadata()}) == THREE


@pytest.mark.parametrize("metadata", [{}, {"tasks": None}, {"tasks": "x"}, {"tasks": [5]}])
def test_metadata_without_usable_tasks_counts_as_none(metadata: dict[str, Any]) -> None:
    """9.3.2: other writers cannot break the list."""
    assert TaskList.from_metadata(metadata) == TaskList()


def test_the_initial_reminder_comes_once_at_the_start() -> None:
    """9.3.3: step count 0 and no such marker yet."""
    reminder = initial_reminder(0, ["Buy a car"])
    assert reminder is not None
    assert reminder.startswith("<todo-reminder-initial>\n")
    assert "todo_write" in reminder
    assert initial_reminder(0, ["Buy a car", reminder]) is None
    assert initial_reminder(1, []) is None


@pytest.mark.parametrize(("steps", "due"), [(0, False), (9, False), (10, True), (11, False), (20, True)])
def test_the_nag_comes_at_multiples(steps: int, due: bool) -> None:
    """9.3.3: a positive multiple of reminder_every_steps."""
    nag = due_reminder(steps, POLICY)
    assert (nag is not None) == due
    if nag:
        assert nag.startswith(f"<todo-reminder-nag>\nNo todo_write call for {steps}+ steps")


@pytest.mark.parametrize("every", [0, -1])
def test_zero_or_less_disables_nag_and_render(every: int) -> None:
    """9.3.3: values ≤ 0 disable the last two."""
    policy = TodoPolicy(render_every_steps=every, reminder_every_steps=every)
    assert due_reminder(10, policy) is None
    assert due_listing(THREE, 10, just_called=False, last_text="", policy=policy) is None


@pytest.mark.parametrize(
    ("steps", "since"),
    [
        ([], 0),
        ([["bash"]], 1),
        ([["todo_write"]], 0),
        ([["bash"], ["todo_write", "bash"], ["read_file"], ["bash"]], 2),
    ],
)
def test_steps_count_from_the_last_call_or_the_start(steps: list[list[str]], since: int) -> None:
    """9.3.3: steps since the last todo_write (or the start)."""
    assert steps_since_call(steps) == since


def rendering(**changes: Any) -> str | None:
    facts: dict[str, Any] = {
        "tasks": THREE,
        "step_count": 10,
        "just_called": False,
        "last_text": "ok",
        "policy": POLICY,
    }
    return due_listing(**{**facts, **changes})


def test_the_list_is_rendered_after_every_tenth_step() -> None:
    """9.3.3: the literal form."""
    assert rendering() == (
        "<todo-render>\n1. ● Ask\n2. ◐ Comparing\n3. ○ Buy\n"
        "Done: 1 of 3, in progress: 1, pending: 1\n</todo-render>"
    )
    assert rendering(step_count=20) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"step_count": 9},
        {"step_count": 0},
        {"just_called": True},
        {"tasks": TaskList()},
        {"last_text": "<todo-render>\nx"},
    ],
)
def test_the_list_is_not_rendered_needlessly(change: dict[str, Any]) -> None:
    """9.3.3: unless it called todo_write, there are no tasks, or the last message is a render."""
    assert rendering(**change) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "status", "activeForm"]), inner, max_size=3)
    ),
    max_leaves=15,
)


@given(json_values)
def test_any_list_of_a_model_is_accepted_or_refused(todos: object) -> None:
    """9.3.1: nothing but InvalidInput."""
    try:
        tasks = parse_tasks(todos, POLICY)
    except InvalidInput:
        return
    assert parse_tasks(tasks.to_metadata(), POLICY) == tasks
