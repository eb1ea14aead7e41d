"""The activities of an agent execution.

Each one commits its result in one transaction, under an idempotency key, and returns facts. An attempt that
finds its work recorded returns the record: the model is not asked again and the tool is not run again.
"""

from temporalio import activity

from everstep.activities.agents import Agents, Ended, nobody_waits
from everstep.activities.call_records import USUAL
from everstep.activities.contracts import (
    INFER,
    PROCESS,
    RUN_TOOL,
    SETTLE,
    InferInput,
    Processed,
    ProcessInput,
    SettleInput,
    ToolInput,
    ToolOutput,
)
from everstep.activities.deferred_start import MOMENT
from everstep.activities.error_redaction import discreet
from everstep.activities.failpoints import Strike, inert
from everstep.activities.heartbeat import pulse
from everstep.activities.inference import Asking
from everstep.activities.live_text import LiveTexts
from everstep.activities.processors import Processing
from everstep.activities.status_writer import Settling
from everstep.activities.tool_runner import Running
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.stream.bus import NOBODY, EnvelopeBus


class AgentActivities:
    """Asks models, runs tools and records the status of executions."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: Agents,
        strike: Strike = inert,
        *,
        ended: Ended = nobody_waits,
        bus: EnvelopeBus = NOBODY,
        moment: float = MOMENT,
        disclosure: Disclosure = USUAL,
    ) -> None:
        texts = LiveTexts(bus)
        self.tool_runner = Running(store, agents, strike, moment, disclosure)
        self.inference = Asking(
            store, agents, self.tool_runner, texts, strike, moment=moment, disclosure=disclosure
        )
        self.processor_runner = Processing(store, agents, strike, disclosure)
        self.status_writer = Settling(store, agents, strike, ended, disclosure)

    @activity.defn(name=INFER)
    @discreet
    async def infer(self, request: InferInput) -> StepFacts:
        """Run one model call; recorded once and paid for once."""
        with pulse():
            return await self.inference.answered(request)

    @activity.defn(name=RUN_TOOL)
    @discreet
    async def run_tool(self, request: ToolInput) -> ToolOutput:
        """Run one tool call; its result is recorded once."""
        with pulse():
            return await self.tool_runner.ran(request)

    @activity.defn(name=PROCESS)
    @discreet
    async def process(self, request: ProcessInput) -> Processed:
        """Run the processors on a step; their result is recorded once."""
        with pulse():
            return await self.processor_runner.processed(request)

    @activity.defn(name=SETTLE)
    @discreet
    async def settle(self, request: SettleInput) -> None:
        """Record the status of the execution, with the events for its viewers, once per key."""
        await self.status_writer.settle(request)
