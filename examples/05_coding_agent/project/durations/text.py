"""Durations as text: 1h30m, 45s."""

import re

SECONDS = {"h": 3600, "m": 60, "s": 1}


def parse(text):
    """The seconds of a duration such as 1h30m; ValueError if the text has another format."""
    total = 0
    for number, unit in re.findall(r"(\d+)([hms])", text):
        total = int(number) * SECONDS[unit]
    return total


def render(seconds):
    """The duration as text, such as 1h30m."""
    parts = []
    for unit, size in SECONDS.items():
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"
