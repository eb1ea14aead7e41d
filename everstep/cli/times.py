"""Times of commands: in arguments, and as people read them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SCALES: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
TENTHS_BELOW: Final = 9.95
"""Seconds below which a tenth of a second is shown."""
_AGO = re.compile(r"(\d{1,5})([smhdw])")


class Time(click.ParamType[datetime]):
    """A day or a time in UTC."""

    name = "time"
    how = "write one in UTC"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Read the argument."""
        if isinstance(value, datetime):
            return value
        try:
            at = datetime.fromisoformat(value.strip())
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            examples = "such as 2026-01-16 or 2026-01-16T10:05:00Z"
            self.fail(f"{value!r} is not a time; {self.how}, {examples}", param, ctx)


class Since(Time):
    """A time: how long ago (`2h`), a day or a time in UTC."""

    name = "since"
    how = "write how long ago, such as 30m, 2h or 7d, or a time in UTC"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Read the argument."""
        if isinstance(value, str) and (ago := _AGO.fullmatch(value.strip())):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return super().convert(value, param, ctx)


class Seconds(click.ParamType[int]):
    """A duration in whole seconds: `90`, `90s`, `5m`, `2h`, `1d`."""

    name = "duration"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the argument."""
        if isinstance(value, int):
            return value
        if found := _AGO.fullmatch(value.strip()):
            seconds = round(timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds())
        else:
            try:
                seconds = int(value)
            except ValueError:
                how = "write seconds, or such as 90s, 5m, 2h or 1d"
                self.fail(f"{value!r} is not a duration; {how}", param, ctx)
        if not self.least <= seconds <= self.most:
            allowed = f"{self.least}s to {self.most // 86400}d"
            self.fail(f"{value!r} is out of range; write {allowed}, such as 90s, 5m or 2h", param, ctx)
        return seconds


since_option = click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="Only what began since then: an age (30m, 2h, 7d) or a time in UTC.",
)
"""`--since` of the commands that list."""

until_option = click.option(
    "--until", type=Since(), metavar="TIME", help="Only what began before then: an age or a time in UTC."
)


def seconds_text(seconds: float) -> str:
    """A duration in its two largest units: `0.3 s`, `42 s`, `3 m 05 s`, `2 h 10 m`, `5 d 03 h`."""
    if seconds < TENTHS_BELOW:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, unit, smaller, part in _SCALES:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller:02} {part}"
    return f"{whole} s"


def age_text(at: datetime, now: datetime) -> str:
    """How long ago a time was."""
    return seconds_text((now - at).total_seconds())
