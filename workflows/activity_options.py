"""Timeouts and retries of every activity, in one table.

Transport failures of a model are counted by the activity itself, which knows them from crashes: so
retries are not limited here. Nothing else raises; what tools and models do wrong comes back as
facts.
"""

from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from everstep.activities.contracts import QUICK_SECONDS

LOCAL_RETRY_THRESHOLD = timedelta(milliseconds=1)
"""Below every pause between attempts, so the workflow waits for the next attempt of a local activity.

The SDK would otherwise retry in the worker and leave the first attempt's start-to-close timer running. It
cancels a later attempt, or panics ("receive half not dropped") when it fires after the worker has closed.
`docs/deployment.md` has a program that shows it.
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


_AGAIN = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=15),
)

# A crashed worker is noticed after 10 s without a heartbeat. A cancelled activity ends before the
# workflow goes on, so that nothing writes behind its back.
MODEL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=_AGAIN,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
TOOL = ActivityConfig(
    start_to_close_timeout=timedelta(hours=24),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=_AGAIN,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
QUICK_TOOL = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=2 * QUICK_SECONDS),
    local_retry_threshold=LOCAL_RETRY_THRESHOLD,
    retry_policy=_AGAIN,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
# The store's part of a child's life.
CHILD = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=1),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=_AGAIN,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
# Tries for ever: while the database is down the workflow waits, and a final state is always written.
SETTLE = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=20),
    local_retry_threshold=LOCAL_RETRY_THRESHOLD,
    retry_policy=_AGAIN,
)

ROLL_OVER_EVENTS = 1000
"""So long a history is cut at the next step boundary; replaying thousands of events takes a while."""
