"""When Temporal runs a schedule."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Final
from zoneinfo import ZoneInfo

from temporalio.client import ScheduleCalendarSpec, ScheduleIntervalSpec, ScheduleRange, ScheduleSpec

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.cron_calendars import (
    UtcCalendar,
    days_of_segments,
    latest_time,
    utc_calendars,
)
from everstep.agent_domain.storage.schedules import Cadence, cron_fields

YEARS_BEFORE: Final = 10
YEARS_AHEAD: Final = 20
"""How many years before and after this one Temporal has the times of a cron expression in a time zone whose
clocks change. The first run of each year adds one."""

MARGIN: Final = timedelta(seconds=2)
"""Longer than Temporal takes to apply a change."""


def require_timezone(name: str) -> None:
    """Check that there is a time zone with this name.

    Raises:
        InvalidInput: There is none.
    """
    if _zone(name) is None:
        raise InvalidInput(f"timezone '{name[:100]}' is unknown; send a name such as UTC or Europe/Berlin")


def schedule_spec(cadence: Cadence, this_year: int) -> ScheduleSpec:
    """The times of a cadence for Temporal.

    A cron expression in a time zone whose clocks change becomes calendars of UTC, some years back and ahead.
    """
    spec = ScheduleSpec(
        time_zone_name=cadence.timezone,
        jitter=timedelta(seconds=cadence.jitter_seconds) if cadence.jitter_seconds else None,
        start_at=cadence.start_at,
        end_at=cadence.end_at,
    )
    if cadence.interval_seconds is not None:
        return replace(spec, intervals=[ScheduleIntervalSpec(timedelta(seconds=cadence.interval_seconds))])
    assert cadence.cron is not None  # noqa: S101 -- a cadence has one of both
    zone = _zone(cadence.timezone)
    years = range(this_year - YEARS_BEFORE, this_year + YEARS_AHEAD + 1)
    if zone is None or len(days_of_segments(zone, years)) == 1:
        return replace(spec, cron_expressions=[cadence.cron])
    calendars = utc_calendars(cron_fields(cadence.cron), zone, years)
    return replace(spec, calendars=[_calendar_spec(each) for each in calendars], time_zone_name="UTC")


@lru_cache(maxsize=1024)
def times_digest(cadence: Cadence, this_year: int) -> str:
    """A text that differs if the times for Temporal do."""
    return sha256(str(schedule_spec(cadence, this_year)).encode()).hexdigest()[:16]


def time_without_jitter(cadence: Cadence, at: datetime) -> datetime:
    """The time of the cadence that was delayed to this one. A delay ends before the next time."""
    if not cadence.jitter_seconds:
        return at
    if cadence.interval_seconds is not None:
        return datetime.fromtimestamp(
            at.timestamp() // cadence.interval_seconds * cadence.interval_seconds, UTC
        )
    assert cadence.cron is not None  # noqa: S101 -- a cadence has one of both
    zone = _zone(cadence.timezone)
    return (zone and latest_time(cron_fields(cadence.cron), zone, at)) or at


def is_due(cadence: Cadence, at: datetime, now: datetime) -> bool:
    """Whether a coming run has begun to wait for its jitter, or begins in a moment.

    Temporal drops such a run if its schedule is changed.
    """
    return time_without_jitter(cadence, at) <= now + MARGIN


def _zone(name: str) -> ZoneInfo | None:
    """The time zone; None if the tables of this process lack it, so that those of Temporal decide."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _calendar_spec(calendar: UtcCalendar) -> ScheduleCalendarSpec:
    return ScheduleCalendarSpec(
        minute=_ranges(calendar.minutes),
        hour=_ranges(calendar.hours),
        day_of_month=_ranges(calendar.days),
        month=_ranges(calendar.months),
        year=_ranges(calendar.years),
        day_of_week=_ranges(calendar.weekdays),
    )


def _ranges(values: Sequence[int]) -> Sequence[ScheduleRange]:
    """The ranges of ascending values."""
    ranges: list[ScheduleRange] = []
    for value in values:
        if ranges and ranges[-1].end == value - 1:
            ranges[-1] = replace(ranges[-1], end=value)
        else:
            ranges.append(ScheduleRange(value, value))
    return ranges
