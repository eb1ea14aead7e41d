"""Task planning: the list that todo_write replaces, and the reminders about it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, cast

from everstep.agent_domain.checks import require_integer, require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, frozen_map

TOOL = "todo_write"
METADATA_KEY = "tasks"


class TaskStatus(StrEnum):
    """The status of a task."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


_MARKS = {TaskStatus.COMPLETED: "●", TaskStatus.IN_PROGRESS: "◐", TaskStatus.PENDING: "○"}


@dataclass(frozen=True, slots=True)
class TodoPolicy:
    """The limits of the list, and after how many steps to show it or to remind of it (≤ 0: never)."""

    max_items: int = 20
    max_in_progress: int = 1
    render_every_steps: int = 10
    reminder_every_steps: int = 10

    def __post_init__(self) -> None:
        require_integer_at_least("max_items", self.max_items, 1)
        require_integer_at_least("max_in_progress", self.max_in_progress, 0)
        require_integer("render_every_steps", self.render_every_steps)
        require_integer("reminder_every_steps", self.reminder_every_steps)


@dataclass(frozen=True, slots=True)
class Task:
    """One task; `active_form` is its text while it is in progress."""

    content: str
    status: TaskStatus
    active_form: str

    @property
    def line(self) -> str:
        """The task with the mark of its status."""
        text = self.active_form if self.status is TaskStatus.IN_PROGRESS else self.content
        return f"{_MARKS[self.status]} {text}"

    def to_dict(self) -> dict[str, str]:
        """The JSON form, as the model sends it."""
        return {"content": self.content, "status": self.status.value, "activeForm": self.active_form}


@dataclass(frozen=True, slots=True)
class TaskList:
    """All tasks, in the model's order. `str` returns the text for the model."""

    tasks: tuple[Task, ...] = ()

    def __str__(self) -> str:
        return f"{self.listing}\n{self.summary}"

    @property
    def listing(self) -> str:
        """One numbered line per task."""
        lines = (f"{number}. {task.line}" for number, task in enumerate(self.tasks, 1))
        return "\n".join(lines) or "(no tasks)"

    @property
    def summary(self) -> str:
        """The number of tasks of each status, as text."""
        done, active, pending = map(self.count, ("completed", "in_progress", "pending"))
        return f"Done: {done} of {len(self.tasks)}, in progress: {active}, pending: {pending}"

    def count(self, status: str) -> int:
        """Count the tasks of a status."""
        return sum(task.status == status for task in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """The result of todo_write."""
        tasks = [task.to_dict() for task in self.tasks]
        return {"success": True, "tasks": tasks, "summary": self.summary, "rendered": self.listing}

    def to_metadata(self) -> list[dict[str, str]]:
        """The value to store under the metadata key."""
        return [task.to_dict() for task in self.tasks]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "TaskList":
        """Read the list that an earlier step stored; an invalid value counts as an empty list."""
        try:
            return cls(_tasks(metadata.get(METADATA_KEY)))
        except InvalidInput:
            return cls()


def parse_tasks(todos: object, policy: TodoPolicy) -> TaskList:
    """Parse the argument of todo_write.

    Raises:
        InvalidInput: A task is malformed, or the list exceeds the limits.
    """
    tasks = TaskList(_tasks(todos))
    if len(tasks.tasks) > policy.max_items:
        _fail(f"At most {policy.max_items} tasks fit in the list, you sent {len(tasks.tasks)}")
    active = tasks.count(TaskStatus.IN_PROGRESS)
    if active > policy.max_in_progress:
        noun = "task" if policy.max_in_progress == 1 else "tasks"
        _fail(f"At most {policy.max_in_progress} {noun} may be in_progress, you sent {active}")
    return tasks


def _tasks(todos: object) -> tuple[Task, ...]:
    if not isinstance(todos, list | tuple):
        _fail("Pass 'todos' as a list of tasks; an empty list clears it")
    return tuple(_task(i, entry) for i, entry in enumerate(cast("Iterable[object]", todos), 1))


def _task(number: int, entry: object) -> Task:
    fields = (
        frozen_map(cast("object", entry), f"Task #{number}") if isinstance(entry, Mapping) else FrozenDict()
    )
    content = _strip(fields.get("content"))
    if not content:
        _fail(f"Task #{number} needs a non-blank 'content'")
    status = _status(number, fields.get("status"))
    active_form = _strip(fields.get("activeForm"))
    if not active_form:
        example = "the task as it is being done (such as 'Comparing the offers')"
        _fail(f"Task #{number} needs a non-blank 'activeForm', {example}")
    return Task(content, status, active_form)


def _status(number: int, value: object) -> TaskStatus:
    if value is None or (isinstance(value, str) and not value.strip()):
        _fail(f"Task #{number} needs a 'status': pending, in_progress or completed")
    try:
        return TaskStatus(_strip(value))
    except ValueError:
        _fail(f"Task #{number} has an unknown 'status', use pending, in_progress or completed")


def _strip(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _fail(message: str) -> NoReturn:
    raise InvalidInput(message)


# --- Reminders ---

INITIAL_MARKER = "<todo-reminder-initial>"
NAG_MARKER = "<todo-reminder-nag>"
RENDER_MARKER = "<todo-render>"

_INITIAL = f"""\
{INITIAL_MARKER}
If this takes more than two or three steps, plan it with {TOOL} first and keep the list up to date.
</todo-reminder-initial>"""


def initial_reminder(step_count: int, texts: Iterable[str]) -> str | None:
    """The reminder at the start of an execution; None later, or if a message already contains it."""
    return _INITIAL if step_count == 0 and not any(INITIAL_MARKER in text for text in texts) else None


def steps_since_call(tools_by_step: Sequence[Collection[str]]) -> int:
    """The number of steps since the last one that called todo_write, or since the start."""
    calls = [number for number, tools in enumerate(tools_by_step, 1) if TOOL in tools]
    return len(tools_by_step) - (calls[-1] if calls else 0)


def due_reminder(steps_since: int, policy: TodoPolicy) -> str | None:
    """The reminder that is due before a step, if any."""
    if not _is_due(steps_since, policy.reminder_every_steps):
        return None
    advice = "If there is still work to plan or to tick off, call it now."
    return f"{NAG_MARKER}\nNo {TOOL} call for {steps_since}+ steps. {advice}\n</todo-reminder-nag>"


def due_listing(
    tasks: TaskList, step_count: int, *, just_called: bool, last_text: str, policy: TodoPolicy
) -> str | None:
    """The text of the list, if it is due after a step."""
    if just_called or not tasks.tasks or last_text.startswith(RENDER_MARKER):
        return None
    due = _is_due(step_count, policy.render_every_steps)
    return f"{RENDER_MARKER}\n{tasks}\n</todo-render>" if due else None


def _is_due(steps: int, every: int) -> bool:
    return every > 0 and steps > 0 and steps % every == 0
