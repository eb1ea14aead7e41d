"""Instruments: sums, values that are read, distributions, and the bound of their labels."""

from everstep.telemetry.instruments import OTHER, Counter, Gauge, Histogram


def test_a_counter_adds_by_its_labels() -> None:
    counter = Counter("calls", "Calls", ("tool", "outcome"))

    counter.add("search", "ok")
    counter.add("search", "ok", amount=2)
    counter.add("search", "failed")

    assert counter.values == {("search", "ok"): 3, ("search", "failed"): 1}


def test_label_values_beyond_the_bound_are_counted_together() -> None:
    """18.3.3"""
    counter, histogram = Counter("calls", "Calls", ("tool",), 2), Histogram("s", "S", ("tool",), (1.0,), 2)

    for number in range(5):
        counter.add(f"tool-{number}")
        histogram.observe(number, f"tool-{number}")
    counter.add("tool-1")

    assert counter.values == {("tool-0",): 1, ("tool-1",): 2, (OTHER,): 3}
    assert {labels: each.counts for labels, each in histogram.values.items()} == {
        ("tool-0",): [1, 0],
        ("tool-1",): [1, 0],
        (OTHER,): [0, 3],
    }


def test_a_gauge_adds_the_values_of_its_sources_while_they_exist() -> None:
    viewers, lag = Gauge("viewers", "Viewers"), Gauge("lag", "Lag", combine=max)

    with viewers.source(lambda: {(): 2}), viewers.source(lambda: {(): 3}):
        assert viewers.values == {(): 5}
    assert viewers.values == {}
    with lag.source(lambda: {(): 2}), lag.source(lambda: {(): 3}):
        assert lag.values == {(): 3}


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    histogram = Histogram("seconds", "Seconds", bounds=(0.1, 1.0))

    for value in (0.1, 0.5, 1.0, 7.0):
        histogram.observe(value)

    assert histogram.values[()].counts == [1, 2, 1]
    assert histogram.values[()].total == 8.6
