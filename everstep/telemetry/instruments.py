"""Counters, gauges and histograms of this process, cheap enough for every call.

They need no library: adding to one is adding to a dictionary. `everstep.telemetry.exposition` turns them into
the text format of Prometheus when they are read. The library's own instruments take a lock for each addition,
and importing it takes 70 ms, which every command of the command line would pay.

Label values come from agents, tools and tenants, so their number is bounded: after the first ones, others
are counted together as `other`.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

OTHER: Final = "other"
"""The label value of everything beyond the bound."""

MOST_VALUES: Final = 200
"""The number of values of one label."""

SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

LabelValues = tuple[str, ...]


class Instrument:
    """A metric with its labels. Names end as they are exposed, but without Prometheus' `_total`."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), most: int = MOST_VALUES) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._most = most
        self._known: tuple[set[str], ...] = tuple(set[str]() for _ in labels)

    def bound(self, values: LabelValues) -> LabelValues:
        """Return the values, of which those beyond the bound are `other`."""
        return tuple(map(self._bound_value, self._known, values))

    def _bound_value(self, known: set[str], value: str) -> str:
        if value in known:
            return value
        if len(known) >= self._most:
            return OTHER
        known.add(value)
        return value


class Counter(Instrument):
    """A sum that only grows."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), most: int = MOST_VALUES) -> None:
        super().__init__(name, text, labels, most)
        # Without labels it is exposed from the start, so that a rate is known from the first event on.
        self.values: dict[LabelValues, float] = {} if labels else {(): 0.0}

    def add(self, *values: str, amount: float = 1) -> None:
        """Add to the sum of these label values."""
        sums = self.values
        if values not in sums:
            values = self.bound(values)
        sums[values] = sums.get(values, 0.0) + amount


Samples = Mapping[LabelValues, float]


class Gauge(Instrument):
    """A value that is read when it is exposed; the values of several sources are added."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        combine: Callable[[float, float], float] = float.__add__,
    ) -> None:
        super().__init__(name, text, labels)
        self._combine = combine
        self._sources: list[Callable[[], Samples]] = []

    def add_source(self, read: Callable[[], Samples]) -> None:
        """Read from this source, too, as long as the process runs."""
        self._sources.append(read)

    @contextmanager
    def source(self, read: Callable[[], Samples]) -> Generator[None]:
        """Read from this source within the block."""
        self.add_source(read)
        try:
            yield
        finally:
            self._sources.remove(read)

    @property
    def values(self) -> dict[LabelValues, float]:
        """The values of all sources together."""
        sums: dict[LabelValues, float] = {}
        for read in self._sources:
            for labels, value in read().items():
                sums[labels] = self._combine(sums[labels], float(value)) if labels in sums else float(value)
        return sums


@dataclass(slots=True)
class Distribution:
    """The counts of one set of label values of a histogram."""

    counts: list[int]
    """How many values are in each bucket; the last one is for those above all bounds."""
    total: float = 0.0


class Histogram(Instrument):
    """How values are distributed, mostly seconds."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        bounds: tuple[float, ...] = SECONDS,
        most: int = MOST_VALUES,
    ) -> None:
        super().__init__(name, text, labels, most)
        self.bounds = bounds
        self.values: dict[LabelValues, Distribution] = {}
        if not labels:
            self.values[()] = Distribution([0] * (len(bounds) + 1))

    def observe(self, value: float, *values: str) -> None:
        """Add a value."""
        distribution = self.values.get(values)
        if distribution is None:
            empty = Distribution([0] * (len(self.bounds) + 1))
            distribution = self.values.setdefault(self.bound(values), empty)
        distribution.counts[bisect_left(self.bounds, value)] += 1
        distribution.total += value
