"""The activities of an agent execution.

Each writes what it did in one transaction, under a key, and returns facts. An attempt that finds the
work recorded returns what is recorded: the model is not asked again, the tool not run again.
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
    """Asks models, runs tools, writes down where an execution stands."""

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
        self.running = Running(store, agents, strike, moment, disclosure)
        self.asking = Asking(store, agents, self.running, texts, strike, moment=moment, disclosure=disclosure)
        self.processing = Processing(store, agents, strike, disclosure)
        self.settling = Settling(store, agents, strike, ended, disclosure)

    @activity.defn(name=INFER)
    @discreet
    async def infer(self, request: InferInput) -> StepFacts:
        """One step's answer: recorded once, and paid for once."""
        with pulse():
            return await self.asking.answered(request)

    @activity.defn(name=RUN_TOOL)
    @discreet
    async def run_tool(self, request: ToolInput) -> ToolOutput:
        """One call's result, recorded once."""
        with pulse():
            return await self.running.ran(request)

    @activity.defn(name=PROCESS)
    @discreet
    async def process(self, request: ProcessInput) -> Processed:
        """What processors make of a step, recorded once."""
        with pulse():
            return await self.processing.processed(request)

    @activity.defn(name=SETTLE)
    @discreet
    async def settle(self, request: SettleInput) -> None:
        """Where the execution stands, with all that its readers are told; a key settles once."""
        await self.settling.settle(request)
