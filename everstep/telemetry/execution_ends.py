"""Counts ends of executions, and writes one line to the log for each."""

import logging
from dataclasses import dataclass

from everstep.agent_domain.ids import ExecutionRef
from everstep.telemetry import metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedExecution:
    """An execution whose end was stored just now, without its texts."""

    ref: ExecutionRef
    agent: str
    status: str
    stop_reason: str
    steps: int
    tokens: int
    worked_seconds: float


def record_end(ended: EndedExecution) -> None:
    """Count and log an end; call it once, where the end was stored."""
    metrics.EXECUTIONS.add(ended.agent, ended.status)
    log.info(
        "execution %s of %s is %s: %s, %s steps, %s tokens, %.1f s",
        ended.ref.execution_id,
        ended.agent,
        ended.status,
        ended.stop_reason,
        ended.steps,
        ended.tokens,
        ended.worked_seconds,
        extra={
            "execution_id": str(ended.ref.execution_id),
            "session_id": ended.ref.session_id and str(ended.ref.session_id),
            "tenant_id": ended.ref.tenant_id,
            "agent": ended.agent,
            "status": ended.status,
            "stop_reason": ended.stop_reason,
            "steps": ended.steps,
            "tokens": ended.tokens,
            "seconds": round(ended.worked_seconds, 3),
        },
    )
