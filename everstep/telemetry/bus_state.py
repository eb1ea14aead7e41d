"""The state of the bus for probes."""

from everstep.telemetry.metrics import BUS_CONNECTED


def bus_state() -> str | None:
    """What is wrong with NATS, empty for nothing; None if the bus is not NATS.

    A process is ready without NATS: viewers get events later.
    """
    values = BUS_CONNECTED.values.values()
    if not values:
        return None
    return "" if all(values) else "NATS is away: viewers get events from the table, later; the log says why"
