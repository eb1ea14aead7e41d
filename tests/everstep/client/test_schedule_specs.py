"""The times of schedules, as Temporal is given them."""

from datetime import UTC, datetime, timedelta

from everstep.agent_domain.storage.schedules import Cadence
from everstep.client.schedule_specs import is_due, schedule_spec, time_without_jitter, times_digest

BERLIN = Cadence(cron="30 1 * * *", timezone="Europe/Berlin", jitter_seconds=7200)
AT = datetime(2026, 1, 16, 0, 30, tzinfo=UTC)


def test_each_year_adds_the_times_of_one_where_clocks_change() -> None:
    """18.7.9"""
    assert times_digest(BERLIN, 2026) != times_digest(BERLIN, 2027)
    assert {
        year
        for each in schedule_spec(BERLIN, 2026).calendars
        for span in each.year
        for year in range(span.start, span.end + 1)
    } == set(range(2016, 2047))
    for steady in (
        Cadence(cron="30 1 * * *"),
        Cadence(cron="30 1 * * *", timezone="Asia/Kolkata"),
        Cadence(interval_seconds=60, timezone="Europe/Berlin"),
        Cadence(cron="30 1 * * *", timezone="Mars/Olympus"),
    ):
        assert times_digest(steady, 2026) == times_digest(steady, 2027)
        assert not schedule_spec(steady, 2026).calendars


def test_a_delayed_run_is_of_the_time_before_it() -> None:
    """18.7.4: the id of its execution contains the time without the jitter."""
    hourly = Cadence(interval_seconds=3600, jitter_seconds=3599)
    late = timedelta(minutes=59, milliseconds=1)
    assert time_without_jitter(BERLIN, AT + late) == AT
    assert time_without_jitter(hourly, AT.replace(minute=0) + late) == AT.replace(minute=0)
    assert time_without_jitter(Cadence(interval_seconds=7), AT) == AT
    # 18.7.9: while it waits, Temporal is not given other times, as it would drop the run.
    second = timedelta(seconds=1)
    assert [is_due(BERLIN, AT + late, AT + each) for each in (-3 * second, -second, late)] == [
        False,
        True,
        True,
    ]
