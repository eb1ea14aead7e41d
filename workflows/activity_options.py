"""Timeouts and retry policies of every activity, in one table.

Attempts are not limited here. The activity itself counts transport failures of a model, because only it can
distinguish them from worker crashes. Tool and model errors are returned as facts and do not raise.
"""

from dataclasses import replace
from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from everstep.agent_domain.tools.tools import QUICK_SECONDS

LOCAL_RETRY_THRESHOLD = timedelta(milliseconds=1)
"""Shorter than every retry interval, so that the workflow waits for the next attempt of a local activity.

Otherwise the SDK retries inside the worker and leaves the first attempt's start-to-close timer running. That
timer cancels a later attempt, or panics ("receive half not dropped") when it fires after the worker has
closed. `docs/temporal-sdk.md` links to a program that reproduces it.
"""


class ActivityConfig(TypedDict, total=False):
    """The options of one activity."""

    start_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy
    cancellation_type: ActivityCancellationType


class LocalActivityConfig(TypedDict):
    """The options of one local activity."""

    start_to_close_timeout: timedelta
    local_retry_threshold: timedelta
    retry_policy: RetryPolicy
    cancellation_type: NotRequired[ActivityCancellationType]


_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=15),
)

# A crashed worker is detected after 10 s without a heartbeat. A cancelled activity completes before the
# workflow continues, so that it cannot write to the store afterwards.
MODEL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=_RETRY,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
# A longer call continues in an activity of its own: see `brief_inference`.
BRIEF_MODEL = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=20),
    local_retry_threshold=LOCAL_RETRY_THRESHOLD,
    retry_policy=_RETRY,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
TOOL = ActivityConfig(
    start_to_close_timeout=timedelta(hours=24),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=_RETRY,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
QUICK_TOOL = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=2 * QUICK_SECONDS),
    local_retry_threshold=LOCAL_RETRY_THRESHOLD,
    retry_policy=_RETRY,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
# The store's side of starting, reporting and closing a child execution.
CHILD = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=1),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=_RETRY,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
# No maximum number of attempts: while the database is down the workflow waits, so the final state is always
# recorded.
SETTLE = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=20),
    local_retry_threshold=LOCAL_RETRY_THRESHOLD,
    retry_policy=_RETRY,
)

# Temporal's own cancel request, for the workflow of an execution that was cancelled in another way. The
# attempts are limited: a server may refuse it for good.
CANCEL_REQUEST = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=5),
    local_retry_threshold=LOCAL_RETRY_THRESHOLD,
    retry_policy=replace(_RETRY, maximum_attempts=5),
)

# A repeated attempt finds what an earlier one stored: the timeout only limits the wait for a lost worker.
SIGNAL = ActivityConfig(start_to_close_timeout=timedelta(seconds=20), retry_policy=_RETRY)

SHORTEST_TIMER = timedelta(milliseconds=1)

LONGEST_TASK = timedelta(seconds=0.25)
"""How long local model calls may keep one workflow task open: messages from people wait for its end."""

ROLL_OVER_EVENTS = 1000
"""History length at which the next step boundary continues as new; replaying thousands of events is slow."""
