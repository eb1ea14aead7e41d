"""The table of the gateway's bench: its rows, their targets, and how they are printed."""

import statistics
from dataclasses import dataclass
from typing import Final, TypeAlias

from figures import line, mark, misses

RELAY: Final = "relay"
EVERSTEP: Final = "everstep"
SIDES: Final = (RELAY, EVERSTEP)


@dataclass(frozen=True)
class Row:
    """A line of the table: the values of both sides, and their ratio with an upper or a lower limit.

    If the relay has no comparable value, the target is for our own value, in this unit.
    """

    name: str
    unit: str = ""
    scale: float = 1.0
    target: str = ""
    is_alone: bool = False


ROWS: Final = (
    Row("CPU of a delivery, 20,000/s", "us", 1e6),
    Row("CPU of a delivery, 60,000/s", "us", 1e6),
    Row("CPU of a delivery, without a pause", "us", 1e6),
    Row("deliveries in a second of CPU, 20,000/s", "", 1, ">= 0.80"),
    Row("deliveries in a second of CPU, 60,000/s", "", 1, ">= 0.80"),
    Row("deliveries in a second of CPU, without a pause", "", 1, ">= 1.00"),
    Row("deliveries in a second, without a pause", "/s"),
    Row("core of the load, without a pause", "%", 100),
    Row("latency, 20,000/s, p50", "ms", 1000),
    Row("latency, 20,000/s, p99", "ms", 1000, "<= 2.00"),
    Row("latency, 20,000/s, p99.9", "ms", 1000),
    Row("idle: memory of a connection", "kB", 1e-3, "<= 0.60"),
    Row("idle: CPU to connect and subscribe", "us", 1e6, "<= 2.00"),
    Row("idle: CPU of all", "%", 100, "<= 2.00", is_alone=True),
    Row("back: time until all is replayed", "s", 1),
    Row("back: CPU until all is replayed", "s", 1, "<= 0.80"),
    Row("slow readers: latency of the others, p50", "ms", 1000),
    Row("slow readers: latency of the others, p99", "ms", 1000, "<= 2.00"),
    Row("slow readers: memory for each", "kB", 1e-3, "<= 500", is_alone=True),
)

Samples: TypeAlias = dict[tuple[str, str], list[float]]
"""The measured values, by the name of a row and the side."""


def print_ratios(samples: Samples) -> bool:
    """Print the comparison; return whether a target was missed."""
    missed = False
    line("", *SIDES, "ratio", "target")
    for row in ROWS:
        relay, ours = (samples.get((row.name, side), []) for side in SIDES)
        if not ours:
            continue
        # Per round: other load on the machine changes from round to round.
        ratio = statistics.median(our / max(their, 1e-9) for our, their in zip(ours, relay, strict=True))
        values = [statistics.median(each) * row.scale for each in (relay, ours)]
        wrong = misses(values[1] if row.is_alone else ratio, row.target)
        missed |= wrong
        shown = [f"{value:,.{bool(row.unit):d}f} {row.unit:2}" for value in values]
        line(row.name, *shown, "" if row.is_alone else f"{ratio:.2f}", row.target, mark(wrong))
    return missed
