"""Times in arguments and on pages."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from everstep.cli.times import Since, age_text, seconds_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 m 00 s"),
        (65, "1 m 05 s"),
        (3599, "59 m 59 s"),
        (7800, "2 h 10 m"),
        (86400 * 5 + 3600 * 3, "5 d 03 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    """15.5.4"""
    assert seconds_text(seconds) == text


def test_an_age_is_the_time_since_then() -> None:
    at = datetime(2026, 1, 16, tzinfo=UTC)
    assert age_text(at, at + timedelta(minutes=2)) == "2 m 00 s"


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30s", timedelta(seconds=30)), ("2h", timedelta(hours=2)), ("99999w", timedelta(weeks=99999))],
)
def test_since_is_how_long_ago(text: str, ago: timedelta) -> None:
    """15.5.7"""
    read = Since().convert(text, None, None)
    assert abs(datetime.now(UTC) - ago - read) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-16", datetime(2026, 1, 16, tzinfo=UTC)),
        ("2026-01-16T10:05:00Z", datetime(2026, 1, 16, 10, 5, tzinfo=UTC)),
        ("2026-01-16T10:05:00+02:00", datetime(2026, 1, 16, 8, 5, tzinfo=UTC)),
    ],
)
def test_since_is_a_time_in_utc(text: str, at: datetime) -> None:
    """15.5.7"""
    assert Since().convert(text, None, None) == at


@pytest.mark.parametrize("text", ["", "yesterday", "2x", "-2h", "2026-13-01", "9999999999d", "1.5h"])
def test_any_other_time_is_refused_with_how_to_write_it(text: str) -> None:
    """15.5.7"""
    with pytest.raises(click.BadParameter, match="write how long ago, such as 30m, 2h or 7d"):
        Since().convert(text, None, None)
