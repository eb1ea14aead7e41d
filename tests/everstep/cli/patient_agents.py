"""A criterion that takes its time, so that a what-if can be watched."""

import time

from everstep.agent_domain.agents.plan import REGISTERED
from everstep.agent_domain.loop.continuation import ContinuationDecision
from tests.everstep.cli.agents import agents

__all__ = ["agents"]

SECONDS = 0.05


@REGISTERED.function("tests.patient")
def patient(_state: object) -> ContinuationDecision:
    """Allow another step, after a moment."""
    time.sleep(SECONDS)
    return ContinuationDecision.ALLOW
