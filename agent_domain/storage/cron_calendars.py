"""The times of a cron expression in a time zone, as calendars of UTC.

Temporal's search for the next local time loses and doubles times on the days on which clocks change. UTC
has no such days, so its calendars are exact. They name years, months and days, as the offset depends on them.

A time that does not exist is in no calendar; of one that exists twice, the first is.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from everstep.agent_domain.storage.schedules import CronFields

DAY: Final = timedelta(days=1)
MINUTES: Final = 24 * 60
LONGEST_MONTH: Final = 31
LONGEST_SEARCH: Final = 10 * 366
"""Days, as a 29 February may be eight years away."""


@dataclass(frozen=True, slots=True)
class UtcCalendar:
    """Times of UTC: those that match every field."""

    minutes: Sequence[int]
    hours: Sequence[int]
    days: Sequence[int]
    months: Sequence[int]
    weekdays: Sequence[int]
    """0 is Sunday."""
    years: Sequence[int]


class Segment(NamedTuple):
    """Minutes of a day of UTC in which clocks have the same offset, and show no time again."""

    begin: int
    end: int
    offset: int
    """In minutes."""


class MonthDays(NamedTuple):
    """Days of a month of UTC.

    If the last day of a short month is among them, those up to the 31st are, so that months are alike.
    """

    year: int
    month: int
    days: frozenset[int]


DaysOfSegments = Mapping[tuple[Segment, ...], Sequence[MonthDays]]


def utc_calendars(fields: CronFields, zone: tzinfo, years: range) -> Sequence[UtcCalendar]:
    """The times of these years at which clocks in the zone show a time of the expression."""
    calendars: list[UtcCalendar] = []
    for segments, months in days_of_segments(zone, years).items():
        for shift, hours_of_minutes in _times(fields, segments).items():
            weekdays = sorted((weekday - shift) % 7 for weekday in fields.weekdays)
            for days, chosen, its_years in _dates(fields, months, shift):
                calendars += [
                    UtcCalendar(minutes, hours, days, chosen, weekdays, its_years)
                    for minutes, hours in hours_of_minutes
                ]
    return calendars


def latest_time(fields: CronFields, zone: tzinfo, at: datetime) -> datetime | None:
    """The last time of the expression that is not after this; None if there is none in ten years."""
    today = at.astimezone(zone).date()
    for day in (today - each * DAY for each in range(LONGEST_SEARCH)):
        if day.day in fields.days and day.month in fields.months and day.isoweekday() % 7 in fields.weekdays:
            clock = ((hour, minute) for hour in fields.hours for minute in fields.minutes)
            moments = (datetime(day.year, day.month, day.day, *each, tzinfo=zone) for each in clock)
            times = (each.astimezone(UTC) for each in moments if _exists(each, zone))
            if earlier := [each for each in times if each <= at]:
                return max(earlier)
    return None


def _exists(moment: datetime, zone: tzinfo) -> bool:
    return moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == moment.replace(tzinfo=None)


@lru_cache(maxsize=32)
def days_of_segments(zone: tzinfo, years: range) -> DaysOfSegments:
    """The days of these years by their offsets. Only days on which clocks change have several segments."""
    days: dict[tuple[Segment, ...], dict[tuple[int, int], set[int]]] = defaultdict(lambda: defaultdict(set))
    midnight, end = datetime(years[0], 1, 1, tzinfo=UTC), datetime(years[-1] + 1, 1, 1, tzinfo=UTC)
    clock = _clock(midnight, zone)
    while midnight < end:
        following = midnight + DAY
        next_clock = _clock(following, zone)
        is_uniform = clock == next_clock and not clock[1]
        segments = (Segment(0, MINUTES, clock[0]),) if is_uniform else _segments(midnight, zone)
        same = days[segments][midnight.year, midnight.month]
        same.add(midnight.day)
        if following.month != midnight.month:
            same.update(range(midnight.day, LONGEST_MONTH + 1))
        midnight, clock = following, next_clock
    # Most months have the same days, and share the set.
    shared: dict[frozenset[int], frozenset[int]] = {}
    return {
        segments: [
            MonthDays(year, month, shared.setdefault(each, each))
            for (year, month), each in zip(months, map(frozenset, months.values()), strict=True)
        ]
        for segments, months in days.items()
    }


def _clock(at: datetime, zone: tzinfo) -> tuple[int, int]:
    """The offset in minutes, and 1 if clocks show the time for the second time."""
    local = at.astimezone(zone)
    offset = local.utcoffset() or timedelta()
    return offset.days * MINUTES + offset.seconds // 60, local.fold


def _segments(midnight: datetime, zone: tzinfo) -> tuple[Segment, ...]:
    def clock(minute: int) -> tuple[int, int]:
        return _clock(midnight + timedelta(minutes=minute), zone)

    def split(begin: int, last: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        if (first := clock(begin)) == clock(last):
            yield begin, last + 1, first
            return
        middle = (begin + last) // 2
        yield from split(begin, middle)
        yield from split(middle + 1, last)

    found: list[Segment] = []
    for begin, end, (offset, fold) in split(0, MINUTES - 1):
        if fold:
            continue
        is_same = bool(found) and found[-1].end == begin and found[-1].offset == offset
        found.append(Segment(found.pop().begin if is_same else begin, end, offset))
    return tuple(found)


def _times(
    fields: CronFields, segments: Iterable[Segment]
) -> Mapping[int, Sequence[tuple[Sequence[int], Sequence[int]]]]:
    """The minutes with their hours of UTC, by the days that the local date is ahead."""
    hours: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for begin, end, offset in segments:
        for shift in (-1, 0, 1):
            for hour in fields.hours:
                for minute in fields.minutes:
                    at = shift * MINUTES + hour * 60 + minute - offset
                    if begin <= at < end:
                        hours[shift][at // 60].add(at % 60)
    return {shift: _merged(minutes) for shift, minutes in hours.items()}


def _merged(sets: Mapping[int, Iterable[int]]) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
    """The keys that have the same values, each with these: `(values, keys)`."""
    keys: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for key, values in sorted(sets.items()):
        keys[tuple(sorted(values))].append(key)
    return list(keys.items())


def _dates(
    fields: CronFields, months: Iterable[MonthDays], shift: int
) -> Iterator[tuple[Sequence[int], Sequence[int], Sequence[int]]]:
    """The days, months and years of UTC at which the local date is of the expression."""
    chosen: dict[tuple[int, ...], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for year, month, days in months:
        matching = tuple(day for day in sorted(days) if _is_local_day(fields, year, month, day, shift))
        if matching:
            chosen[matching][year].add(month)
    for days, months_of_years in chosen.items():
        for its_months, years in _merged(months_of_years):
            yield days, its_months, years


def _is_local_day(fields: CronFields, year: int, month: int, day: int, shift: int) -> bool:
    """Whether the local date matches. The result for a date that does not exist has no effect."""
    if shift == 0:
        return day in fields.days and month in fields.months
    try:
        local = date(year, month, day) + shift * DAY
    except ValueError:
        return len(fields.days) == LONGEST_MONTH
    return local.day in fields.days and local.month in fields.months
