"""Events about the progress of a call in this process."""

import asyncio

from everstep.agent_domain.state.events import EventBus, ToolCallProgressed
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.tools.tools import ToolCall
from everstep.local.clock import Clock


class ProgressEvents:
    """Emits what a tool reports, in the event loop: plain tools run in threads, and listeners do not."""

    def __init__(self, events: EventBus, clock: Clock, state: AgentState, call: ToolCall) -> None:
        self._events = events
        self._clock = clock
        self._state = state
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._failure: Exception | None = None
        self._is_over = False

    def report(self, progress: Progress) -> None:
        """Emit the progress as soon as the event loop is free."""
        if not self._is_over:
            self._loop.call_soon_threadsafe(self._emit, progress)

    def _emit(self, progress: Progress) -> None:
        if self._is_over or self._failure:
            return
        event = ToolCallProgressed(
            at=self._clock.now(),
            agent_id=self._state.agent_id,
            parent_agent_id=self._state.parent_agent_id,
            tool=self._call.name,
            tool_call_id=self._call.id,
            step_number=self._state.facts.recorded_steps + 1,
            text=progress.text,
            fraction=progress.fraction,
        )
        try:
            self._events.emit(event)
        except Exception as error:  # noqa: BLE001 -- raised by `finish`, outside of the tool
            self._failure = error

    async def finish(self) -> None:
        """Emit what is left; later reports, of a thread that runs on, are dropped.

        Raises:
            ListenerFailed: A listener raised.
        """
        # The reports of the tool are before this task in the queue of the loop.
        await asyncio.sleep(0)
        self._is_over = True
        if self._failure:
            raise self._failure
