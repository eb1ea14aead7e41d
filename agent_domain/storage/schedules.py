"""Schedules: messages that are sent to an agent at times, and the port that stores them."""

import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, Self
from uuid import UUID

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.sessions import MAX_CONTENT, limited_text

MAX_INTERVAL: Final = 366 * 86_400
MAX_CRON: Final = 200
MAX_SCHEDULES: Final = 200
"""The limit of schedules of one user."""

CATCH_UP: Final = timedelta(hours=1)
"""Runs that were missed for longer than this, because the servers were down, are left out."""

REFUSED: Final = "Temporal does not accept the schedule"
"""The begin of the error of a schedule that is not applied again until it is changed, or repaired."""


class Overlap(StrEnum):
    """What happens at a time at which the previous run has not ended."""

    SKIP = "skip"
    """The run is left out."""
    QUEUE = "queue"
    """It begins when the previous one ends; further ones are left out."""
    ALLOW = "allow"
    """Both run."""
    CANCEL = "cancel"
    """The previous one is cancelled."""


class TooManySchedules(EverstepError):
    """A user has as many schedules as are allowed."""

    def __init__(self) -> None:
        super().__init__(f"a user has at most {MAX_SCHEDULES} schedules; delete one first")


_NAMES: Final = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "day of the week": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 7),
)
_LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ITEM: Final = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d{1,4}))?", re.ASCII)


def require_cron(text: str) -> str:
    """The cron expression, if it has five valid fields or is a shorthand such as `@daily`.

    Raises:
        InvalidInput: It has not; the message names the field.
    """
    if text.strip() in _SHORTHANDS:
        return text.strip()
    fields = text.split()
    if len(fields) != len(_FIELDS) or len(text) > MAX_CRON:
        raise InvalidInput(
            "cron needs five fields: minute, hour, day of the month, month, day of the week, "
            f"such as '0 9 * * mon-fri'; or one of {', '.join(_SHORTHANDS)}"
        )
    for (name, least, most), field in zip(_FIELDS, fields, strict=True):
        for item in field.split(","):
            _item_values(item, name, least, most)
    return " ".join(fields)


@dataclass(frozen=True, slots=True)
class CronFields:
    """The values that the fields of a cron expression match."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""


def cron_fields(cron: str) -> CronFields:
    """The values that a valid expression matches."""
    fields = _SHORTHANDS.get(cron, cron).split()
    minutes, hours, days, months, weekdays = (
        frozenset(value for item in field.split(",") for value in _item_values(item, name, least, most))
        for (name, least, most), field in zip(_FIELDS, fields, strict=True)
    )
    return CronFields(minutes, hours, days, months, frozenset(day % 7 for day in weekdays))


def _require_days(cron: str) -> None:
    """Check that a month of a valid expression has a day of it."""
    fields = cron_fields(cron)
    day = min(fields.days)
    if all(day > _LONGEST_MONTHS[month - 1] for month in fields.months):
        raise InvalidInput(f"cron: no month of '{cron.split()[3]}' has the day {day}, so it would never run")


def _item_values(item: str, name: str, least: int, most: int) -> range:
    """Return the values that an item of a field matches."""
    matched = _ITEM.fullmatch(item)
    if matched is None:
        raise InvalidInput(f"cron: '{item}' is not a valid {name}; write a number, a range, a list or *")
    begin, end, step = matched.groups()
    values = [_value(each, name, least, most) for each in (begin, end) if each is not None]
    if values != sorted(values):
        raise InvalidInput(f"cron: the range '{item}' of the {name} ends before it begins")
    if step is not None and int(step) == 0:
        raise InvalidInput(f"cron: the step of '{item}' is 0; write 1 or more")
    first, *others = values or [least]
    last = others[0] if others else first if values and step is None else most
    return range(first, last + 1, int(step or 1))


def _value(text: str, name: str, least: int, most: int) -> int:
    names = _NAMES.get(name, ())
    if text.lower() in names:
        return names.index(text.lower()) + (1 if name == "month" else 0)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise InvalidInput(f"cron: '{text}' is not a valid {name}; write {least} to {most}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a schedule runs: at an interval, or as a cron expression says."""

    interval_seconds: int | None = None
    cron: str | None = None
    timezone: str = "UTC"
    """Of the cron expression, such as `Europe/Berlin`; the client checks whether there is such a zone."""
    jitter_seconds: int = 0
    """Each run is delayed by a random time up to this."""
    start_at: datetime | None = None
    end_at: datetime | None = None

    def __post_init__(self) -> None:
        if (self.interval_seconds is None) == (self.cron is None):
            raise InvalidInput("a schedule has either interval_seconds or cron; send one of them")
        if self.interval_seconds is not None and not 1 <= self.interval_seconds <= MAX_INTERVAL:
            raise InvalidInput(f"interval_seconds is {self.interval_seconds}; send 1 to {MAX_INTERVAL}")
        if self.cron is not None:
            object.__setattr__(self, "cron", require_cron(self.cron))
        if not 0 <= self.jitter_seconds <= MAX_INTERVAL:
            raise InvalidInput(f"jitter_seconds is {self.jitter_seconds}; send 0 to {MAX_INTERVAL}")
        if self.start_at and self.end_at and self.end_at <= self.start_at:
            raise InvalidInput("end_at is not after start_at")

    def require_future(self, now: datetime) -> Self:
        """The same cadence.

        Raises:
            InvalidInput: It has ended already, or has days that its months do not have.
        """
        # Not checked where stored expressions are read.
        if self.cron is not None:
            _require_days(self.cron)
        if self.end_at is not None and self.end_at <= now:
            raise InvalidInput("end_at is in the past, so the schedule would never run")
        return self


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """What a user sets of a schedule."""

    agent: str
    content: str
    """The message that is sent."""
    cadence: Cadence
    overlap: Overlap = Overlap.SKIP
    session_id: UUID | None = None
    """The session that receives the messages; None: each run has a new one."""
    is_paused: bool = False

    def __post_init__(self) -> None:
        limited_text("content", self.content, MAX_CONTENT)
        if not self.content.strip():
            raise InvalidInput("content is empty; say what the agent has to do")


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A stored schedule. Temporal's own schedule is made to be like it."""

    id: UUID
    tenant_id: str
    user_id: str
    settings: ScheduleSettings
    created_at: datetime
    updated_at: datetime
    revision: int = 1
    """Counts the changes."""
    applied_revision: int = 0
    """The last change that Temporal has."""
    is_deleted: bool = False
    """Whether only Temporal's schedule is left to be deleted."""
    last_error: str | None = None
    """Why the last run could not begin."""
    task_queue: str | None = None

    @property
    def scope(self) -> Scope:
        """Whose schedule it is."""
        return Scope(self.tenant_id, self.user_id)

    @property
    def is_applied(self) -> bool:
        """Whether Temporal has the last change."""
        return self.applied_revision >= self.revision


class ScheduleStore(Protocol):
    """Stores schedules. Every method is one transaction."""

    async def add_schedule(self, row: ScheduleRow) -> ScheduleRow:
        """Store a schedule; an existing one with the same id is returned unchanged.

        Raises:
            TooManySchedules: The user has as many as are allowed.
        """
        ...

    async def schedule(self, scope: Scope, schedule_id: UUID) -> ScheduleRow | None:
        """One schedule, if it exists and the scope covers it."""
        ...

    async def schedules(
        self, scope: Scope, *, cursor: str | None = None, limit: int = 50
    ) -> Page[ScheduleRow]:
        """Schedules, newest first."""
        ...

    async def change_schedule(self, row: ScheduleRow, settings: ScheduleSettings) -> ScheduleRow | None:
        """Store new settings; None if the schedule was changed or deleted since it was read."""
        ...

    async def delete_schedule(self, scope: Scope, schedule_id: UUID) -> ScheduleRow | None:
        """Delete a schedule for its user; None if there is none. `forget_schedule` removes the row."""
        ...

    async def schedule_to_run(self, schedule_id: UUID) -> ScheduleRow | None:
        """A schedule of any tenant; None if it was deleted."""
        ...

    async def acknowledge_revision(self, schedule_id: UUID, revision: int) -> None:
        """Record that Temporal has this revision."""
        ...

    async def forget_schedule(self, schedule_id: UUID) -> None:
        """Remove the row of a deleted schedule."""
        ...

    async def existing_executions(self, tenant_id: str, ids: Sequence[UUID]) -> Collection[UUID]:
        """Those of the executions that exist."""
        ...

    async def note_outcome(self, schedule_id: UUID, error: str | None) -> None:
        """Record whether the last run could begin."""
        ...

    async def unapplied_schedules(
        self, task_queue: str, grace: float, *, with_refused: bool = False
    ) -> Sequence[ScheduleRow]:
        """Schedules with changes that Temporal does not have, some seconds after the change.

        Args:
            task_queue: The task queue of the schedules.
            grace: The seconds.
            with_refused: Also those that Temporal has refused.
        """
        ...

    def applied_schedules(self, task_queue: str) -> AsyncGenerator[ScheduleRow]:
        """Yield the schedules that Temporal has, or had before its database was restored."""
        ...


def cadence_data(cadence: Cadence) -> Mapping[str, Any]:
    """The cadence as JSON."""
    return {
        "interval_seconds": cadence.interval_seconds,
        "cron": cadence.cron,
        "timezone": cadence.timezone,
        "jitter_seconds": cadence.jitter_seconds,
        "start_at": cadence.start_at and cadence.start_at.isoformat(),
        "end_at": cadence.end_at and cadence.end_at.isoformat(),
    }


def cadence_from(data: Mapping[str, Any]) -> Cadence:
    """The cadence from its JSON."""
    moments: dict[str, Any] = {
        name: datetime.fromisoformat(data[name]) if data[name] else None for name in ("start_at", "end_at")
    }
    return Cadence(**{**data, **moments})
