"""Envelopes of agents that run in this process."""

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from everstep.agent_domain.state.broadcast_adapter import (
    BroadcastConfig,
    CanBroadcastAgentEvents,
    EventEnvelopeAdapter as Adapter,
)
from everstep.local.clock import SystemClock


class AgentEventEnvelopeAdapter(Adapter):
    """The adapter with this machine's clock, for envelopes without an event that has a time."""

    def __init__(
        self,
        broadcaster: CanBroadcastAgentEvents,
        session_id: UUID | str | None,
        execution_id: UUID | str,
        config: BroadcastConfig | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        super().__init__(broadcaster, session_id, execution_id, config, clock=clock or SystemClock().now)
