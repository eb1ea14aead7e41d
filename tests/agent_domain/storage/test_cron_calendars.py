"""The times of cron expressions in time zones whose clocks change."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from everstep.agent_domain.storage.cron_calendars import UtcCalendar, latest_time, utc_calendars
from everstep.agent_domain.storage.schedules import CronFields, cron_fields

YEARS = range(2026, 2029)
CRONS = (
    "30 1 * * *",
    "*/20 * * * *",
    "15 2 * * *",
    "10,55 0-4/2,23 * * mon-fri",
    "0 0 1,31 * *",
    "@monthly",
    "50 23 29 feb,3 *",
)
CHANGES = {
    "America/New_York": ("2027-03-14", "2027-11-07"),
    "Europe/Berlin": ("2027-03-28", "2027-10-31"),
    # By 30 minutes, by two hours, at midnight, and with minutes in the offset.
    "Australia/Lord_Howe": ("2027-10-03", "2027-04-04"),
    "Antarctica/Troll": ("2027-03-28", "2027-10-31"),
    "America/Havana": ("2027-03-14", "2027-11-07"),
    "America/St_Johns": ("2027-03-14", "2027-11-07"),
    "Asia/Kolkata": ("2027-03-01",),
}


def are_at(calendars: list[UtcCalendar], at: datetime) -> int:
    """The number of calendars that have a time."""
    return sum(
        at.minute in each.minutes
        and at.hour in each.hours
        and at.day in each.days
        and at.month in each.months
        and at.isoweekday() % 7 in each.weekdays
        and at.year in each.years
        for each in calendars
    )


def local_times(fields: CronFields, zone: ZoneInfo, minutes: list[datetime]) -> Iterator[datetime]:
    """The minutes at which clocks show a time of the expression for the first time."""
    for at in minutes:
        local = at.astimezone(zone)
        day = (
            local.day in fields.days,
            local.month in fields.months,
            local.isoweekday() % 7 in fields.weekdays,
        )
        if not local.fold and local.hour in fields.hours and local.minute in fields.minutes and all(day):
            yield at


@pytest.mark.parametrize("name", CHANGES)
def test_each_local_time_that_exists_is_run_once(name: str) -> None:
    """18.7.9: on the days around both changes of the clocks, and around the ends of months."""
    zone = ZoneInfo(name)
    days = [datetime.fromisoformat(f"{day}T00:00Z") for day in (*CHANGES[name], "2028-02-29", "2026-12-31")]
    minutes = [day + timedelta(minutes=each) for day in days for each in range(-1440, 2 * 1440, 5)]
    for cron in CRONS:
        fields = cron_fields(cron)
        calendars = list(utc_calendars(fields, zone, YEARS))
        found = Counter({at: count for at in minutes if (count := are_at(calendars, at))})
        assert found == Counter(local_times(fields, zone, minutes)), cron


@pytest.mark.parametrize(
    ("cron", "at", "expected"),
    [
        ("30 1 * * *", "2026-11-01T07:00Z", "2026-11-01T05:30Z"),
        ("30 2 * * *", "2026-03-08T23:00Z", "2026-03-07T07:30Z"),
        ("0 9 29 2 *", "2027-01-01T00:00Z", "2024-02-29T14:00Z"),
        ("0 9 31 2 *", "2027-01-01T00:00Z", None),
    ],
)
def test_a_delayed_time_is_traced_to_the_one_before_it(cron: str, at: str, expected: str | None) -> None:
    """18.7.4, 18.7.9"""
    latest = latest_time(cron_fields(cron), ZoneInfo("America/New_York"), datetime.fromisoformat(at))
    assert latest == (expected and datetime.fromisoformat(expected).astimezone(UTC))
