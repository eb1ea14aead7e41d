"""The activities of an agent execution.

Each one commits its result in one transaction, under an idempotency key, and returns facts. An attempt that
finds its work recorded returns the record: the model is not asked again and the tool is not run again.
"""

from temporalio import activity

from everstep.activities.agents import AgentProvider, OnEnd, ignore_end
from everstep.activities.approval_expiry import expire_approvals
from everstep.activities.brief_inference import BriefInference
from everstep.activities.call_records import DEFAULT_DISCLOSURE
from everstep.activities.contracts import (
    EXPIRE,
    INFER,
    INFER_BRIEFLY,
    PROCESS,
    REQUEST_CANCEL,
    RUN_TOOL,
    SETTLE,
    ExpiryInput,
    ExpiryOutput,
    InferInput,
    ProcessInput,
    ProcessOutput,
    SettleInput,
    StoredEnd,
    ToolInput,
    ToolOutput,
)
from everstep.activities.deferred_start import START_DELAY
from everstep.activities.error_redaction import redact_errors
from everstep.activities.failpoints import Strike, inert
from everstep.activities.heartbeat import heartbeat
from everstep.activities.inference import InferenceRunner
from everstep.activities.live_text import LiveTexts
from everstep.activities.processors import ProcessorRunner
from everstep.activities.status_writer import StatusWriter
from everstep.activities.tool_runner import ToolRunner
from everstep.activities.worker_places import WorkerPlaces, equal_places
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.steps.attachments import Attachments


class AgentActivities:
    """Asks models, runs tools and records the status of executions."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        strike: Strike = inert,
        *,
        on_end: OnEnd = ignore_end,
        bus: EnvelopeBus = NULL_BUS,
        start_delay: float = START_DELAY,
        disclosure: Disclosure = DEFAULT_DISCLOSURE,
        attachments: Attachments | None = None,
        places: WorkerPlaces | None = None,
    ) -> None:
        self.places = places or equal_places()
        texts = LiveTexts(bus)
        self.tool_runner = ToolRunner(
            store, agents, strike, start_delay, disclosure=disclosure, attachments=attachments
        )
        self.inference = InferenceRunner(
            store, agents, self.tool_runner, texts, strike, start_delay=start_delay, disclosure=disclosure
        )
        self.brief_inference = BriefInference(self._infer)
        self.processor_runner = ProcessorRunner(store, agents, strike, disclosure)
        self.store = store
        self.status_writer = StatusWriter(store, agents, strike, on_end, disclosure)

    @activity.defn(name=INFER)
    @redact_errors
    async def infer(self, request: InferInput) -> StepFacts:
        """Run one model call; recorded once and paid for once."""
        with heartbeat():
            return await self.brief_inference.finish(request)

    @activity.defn(name=INFER_BRIEFLY)
    @redact_errors
    async def infer_briefly(self, request: InferInput) -> StepFacts | None:
        """Run one model call if it is short; None if it continues, and `infer` has to wait for it."""
        return await self.brief_inference.start(request)

    async def _infer(self, request: InferInput) -> StepFacts:
        async with self.places.model_place(request.ref.tenant_id) as (count_tokens, on_opened):
            facts = await self.inference.infer(request, on_opened)
            count_tokens(facts.usage.total + facts.besides.usage.total)
            return facts

    @activity.defn(name=RUN_TOOL)
    @redact_errors
    async def run_tool(self, request: ToolInput) -> ToolOutput:
        """Run one tool call; its result is recorded once."""
        with heartbeat():
            async with self.places.place(request.ref.tenant_id) as count_tokens:
                output = await self.tool_runner.run_call(request)
                count_tokens(output.besides.usage.total)
                return output

    @activity.defn(name=PROCESS)
    @redact_errors
    async def process(self, request: ProcessInput) -> ProcessOutput:
        """Run the processors on a step; their result is recorded once."""
        with heartbeat():
            async with self.places.place(request.ref.tenant_id) as count_tokens:
                output = await self.processor_runner.run(request)
                count_tokens(output.besides.usage.total)
                return output

    @activity.defn(name=SETTLE)
    @redact_errors
    async def settle(self, request: SettleInput) -> bool | StoredEnd | None:
        """Record the status of the execution, with the events for its viewers, once per key.

        Returns:
            Whether nothing was recorded because a cancel was stored before this end. Or the end that another
            process has stored. Older releases returned None.
        """
        return await self.status_writer.settle(request)

    @activity.defn(name=EXPIRE)
    @redact_errors
    async def expire(self, request: ExpiryInput) -> ExpiryOutput:
        """Deny calls about which no one has decided in time, and return when the others are due."""
        return await expire_approvals(self.store, request)

    @activity.defn(name=REQUEST_CANCEL)
    @redact_errors
    async def request_cancel(self, ref: ExecutionRef) -> None:
        """Request Temporal's cancel of the workflow that runs this activity; repeating it changes nothing.

        Args:
            ref: Its execution, which names the span and the lines of the log.
        """
        del ref
        info = activity.info()
        workflow = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        await workflow.cancel(reason="the execution was cancelled")
