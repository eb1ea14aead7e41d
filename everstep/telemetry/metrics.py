"""The metrics of every process, whose names dashboards and alerts rely on.

No label has a user, an id or a text of a conversation. Each process counts what it did itself: sum counters
over processes. What is read from the database (`OPEN_REQUESTS`, `QUEUE_DEPTH`) is the same in each process:
take the maximum.
"""

from typing import Final

from everstep.telemetry.instruments import Counter, Gauge, Histogram, Instrument

EXECUTIONS: Final = Counter(
    "everstep_executions", "Executions that ended, counted where the end was stored", ("agent", "status")
)
STEPS: Final = Counter("everstep_steps", "Steps that were recorded, failed ones included")
MODEL_CALLS: Final = Counter(
    "everstep_model_calls", "Requests to models, by preset and outcome", ("preset", "outcome")
)
MODEL_CALL_SECONDS: Final = Histogram(
    "everstep_model_call_seconds", "Duration of requests to models in seconds", ("preset",)
)
FIRST_CHUNK_SECONDS: Final = Histogram(
    "everstep_model_first_chunk_seconds", "Seconds until the first text of a reply", ("preset",)
)
TOKENS: Final = Counter("everstep_tokens", "Tokens that models used, each in one kind", ("preset", "kind"))
COST: Final = Counter("everstep_cost_usd", "Known cost of models in US dollars", ("preset",))
TOOL_CALLS: Final = Counter(
    "everstep_tool_calls", "Tool calls whose result was recorded", ("tool", "outcome")
)
TOOL_FAILURES: Final = Counter("everstep_tool_failures", "Tool calls that failed", ("tool",))
TOOL_CALL_SECONDS: Final = Histogram(
    "everstep_tool_call_seconds", "Duration of tool calls in seconds", ("tool",)
)
RETRIES: Final = Counter(
    "everstep_activity_retries", "Attempts of activities after the first one", ("activity",)
)
ACTIVITY_SLOTS: Final = Gauge("everstep_activity_slots", "Slots for activities of this worker", ("state",))
OPEN_REQUESTS: Final = Gauge(
    "everstep_open_requests", "Open requests to people, in the database", ("kind",), max
)
OPEN_REQUESTS_AGE: Final = Gauge(
    "everstep_open_requests_age_seconds", "Age of the oldest open request in seconds", ("kind",), max
)
QUEUE_DEPTH: Final = Gauge(
    "everstep_queue_depth", "Accepted executions that have not begun, in the database", ("tenant",), max
)
GATEWAY_VIEWERS: Final = Gauge("everstep_gateway_viewers", "Viewers that are connected to this process")
GATEWAY_LAG: Final = Histogram(
    "everstep_gateway_lag_seconds",
    "Seconds from the writing of a chunk to its arrival at the gateway",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
)
BUS_CONNECTED: Final = Gauge(
    "everstep_bus_connected", "Whether this process is connected to NATS, with EVERSTEP_BUS=nats", combine=min
)
BUS_REFUSED: Final = Counter(
    "everstep_bus_refused", "Messages on NATS that are not of this installation, or cannot be read"
)
EVENT_LOOP_LAG: Final = Gauge(
    "everstep_event_loop_lag_seconds",
    "The longest delay of the event loop within the last 15 seconds",
    combine=max,
)
POOL_CONNECTIONS: Final = Gauge(
    "everstep_pool_connections", "Connections to the database by state", ("state",)
)
POOL_WAITS: Final = Histogram(
    "everstep_pool_wait_seconds",
    "Waits for a connection to the database, where none was free",
    bounds=(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0),
)
REPLICA_READS: Final = Counter(
    "everstep_replica_reads",
    "Lists: read from the replica, or from the primary because it was late or away",
    ("outcome",),
)
REPAIRS: Final = Counter("everstep_repairs", "Repairs of the reconciler", ("repair",))
SCRAPE_FAILURES: Final = Counter(
    "everstep_scrape_failures", "Parts of a page of metrics that could not be read", ("part",)
)

ALL: Final[tuple[Instrument, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Instrument)
)
