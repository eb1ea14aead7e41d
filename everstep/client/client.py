"""Starts executions and finds existing ones, from any service.

Messages are stored first; Temporal receives only a reference, so that no text is in a workflow's history.
Every call is idempotent: repeating it with the same execution id, key or answer changes nothing.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID, uuid4, uuid5

from temporalio.client import (
    Client as TemporalClient,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.call_limits import call_limits_of, unknown_prices_text
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.agents.token_counting import ContextWindow, require_fit
from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef, Scope
from everstep.agent_domain.loop.budget import Budget, BudgetUnit
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext, request_data
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message, Messages, as_messages, user
from everstep.agent_domain.messages.response_format import OutputT_co, ResponseFormat
from everstep.agent_domain.storage.audit import AuditReport
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.comparison import Comparison
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow, ExecutionSpec, NewExecution, Page
from everstep.agent_domain.storage.ledger import LedgerEntry
from everstep.agent_domain.storage.recorded_executions import RecordFilter
from everstep.agent_domain.storage.sessions import ExecutionFilter, ExecutionLaunch
from everstep.agent_domain.storage.tenant_store import ADMITTED_AT_ONCE
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.storage.text_search import TextHit
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, json_text, reading
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.client.command_delivery import PAUSES_AND_RESUMES, CommandDelivery
from everstep.client.compared_executions import compare_executions
from everstep.client.current_limits import CurrentLimits
from everstep.client.errors import Taken
from everstep.client.execution import Execution
from everstep.client.fair_dispatch import FairDispatch
from everstep.client.ledgers import audit_execution, each_entry
from everstep.client.structured_results import requested_output
from everstep.client.what_if import WhatIf
from everstep.client.workflow_start import start_with_attributes
from everstep.steps.attachments import Attachments
from everstep.telemetry import tracing
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionInput, workflow_id
from everstep.workflows.listing import details_of, memo_of, summary_of
from everstep.workflows.search_attributes import initial_attributes

log = logging.getLogger(__name__)

_NAMESPACE = UUID("6f2c1f0e-0d0b-4d7e-9a53-7b1f1c5f6a10")
"""The namespace of ids that derive from callers' keys; it must never change."""

REQUEST_DIGEST = "request_digest"
"""The key in an execution's metadata for the digest of the request that created it."""


FirstMessages: TypeAlias = str | Message | Iterable[Message | Mapping[str, Any] | str]
"""The first message of an execution, or several."""


def unknown_window(definition: AgentDefinition, model: str | None) -> ContextWindow | None:
    """Know no context window, where no presets are known."""
    del definition, model
    return None


def accept_any_model(model: str) -> None:
    """Accept every model, where no presets are known."""
    del model


def accept_any_prices(choice: ModelChoice) -> None:
    """Accept every model for a budget in money, where no presets are known: the worker checks its prices."""
    del choice


@dataclass(frozen=True)
class Client:
    """Starts executions and finds existing ones."""

    temporal: TemporalClient
    store: ExecutionStore
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict[str, AgentDefinition])
    """The agents that this client can start."""
    task_queue: str = "everstep"
    tenant_id: str = DEFAULT_TENANT
    search_attributes: bool = False
    """Whether the Temporal server has Everstep's search attributes."""
    strike: Strike = inert
    """Crash tests end the process at these points."""
    check_model: Callable[[str], object] = accept_any_model
    """Refuses a model that an execution cannot use."""
    window_of: Callable[[AgentDefinition, str | None], ContextWindow | None] = unknown_window
    """The context window of an agent's model, or of the model of one execution."""
    check_prices: Callable[[ModelChoice], object] = accept_any_prices
    """Refuses a model whose prices are not known, for an execution with a budget in money."""
    attachments: Attachments | None = None
    """The attached files; None if there is no store for them."""
    public_url: str = ""
    """The URL of the installation for people, to which Temporal's pages link; without a slash at its end."""
    dispatch: FairDispatch = field(default_factory=FairDispatch)
    """Names the tenant and the user of an execution to Temporal, which dispatches tasks fairly."""
    limits: CurrentLimits | None = None
    """The limits of tenants, which say what executions wait for; None if they are not known."""

    def spec_of(
        self, definition: AgentDefinition, model: str | None, output: ResponseFormat | None = None
    ) -> ExecutionSpec:
        """The spec of a new execution.

        Raises:
            InvalidInput: There is no such model, or the agent has one of its own.
        """
        if model is not None:
            self.check_model(model)
        return definition.spec(model, output)

    def require_fit(
        self,
        definition: AgentDefinition,
        model: str | None,
        text: str,
        attachments: Iterable[Attachment] = (),
    ) -> None:
        """Refuse a message that no request to the agent's model can contain.

        Raises:
            MessageTooLong: It cannot.
        """
        require_fit(text, self.window_of(definition, model), attachments)

    def plan_of(
        self,
        definition: AgentDefinition,
        model: str | None = None,
        output: ResponseFormat | None = None,
        *,
        debug: bool = False,
        broadcast: BroadcastConfig | None = None,
        budgets: tuple[Budget, ...] = (),
    ) -> ExecutionPlan:
        """The plan of a new execution; the arguments are those of `start`.

        Raises:
            InvalidInput: No worker could resolve its criteria, or it has a budget in money and the prices of
                its model are not known.
        """
        plan = definition.plan().debugged(debug).told(broadcast).with_output(output).budgeted(budgets)
        plan.rules()
        if any(budget.unit is BudgetUnit.USD for budget in plan.budgets):
            own = definition.driver.model if isinstance(definition.driver, StepDriver) else None
            if own is None:
                self.check_prices(model or definition.model_choice)
            elif not call_limits_of(own).has_prices:
                raise InvalidInput(unknown_prices_text(type(own).__name__))
        return plan

    async def start(  # noqa: PLR0913 -- options of one execution, passed by keyword
        self,
        agent: str,
        message: FirstMessages,
        *,
        execution_id: UUID | None = None,
        session_id: UUID | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] = EMPTY,
        request: str | None = None,
        debug: bool = False,
        broadcast: BroadcastConfig | None = None,
        model: str | None = None,
        output: type[OutputT_co] | Mapping[str, Any] | ResponseFormat | None = None,
        budgets: tuple[Budget, ...] = (),
    ) -> Execution[OutputT_co]:
        """Accept a message and start an execution for it.

        Args:
            agent: The name of the agent.
            message: The first message, or several; attached files are uploaded.
            execution_id: The id of the execution; a repeated id starts nothing new. Random by default.
            session_id: The session of the execution.
            user_id: The user that the execution belongs to.
            metadata: Metadata of the execution.
            request: A digest of the caller's request. The same id with another digest raises `Taken`.
            debug: Store the full state after each step, even if the agent does not.
            broadcast: The level of detail of the events, instead of the agent's.
            model: A preset, or a model in one line (`openai:gpt-5.5`), instead of the agent's.
            output: The type of the result, such as a pydantic model, or its JSON schema, instead of the
                agent's. `Execution.result()` has the result in this type.
            budgets: More budgets for the execution; they may lower those of the agent, but not raise them.

        Raises:
            UnknownName: There is no such agent, or no such preset.
            InvalidInput: The agent has a model of its own, or there is no usable schema of the result.
            MessageTooLong: No request to the model can contain the last message.
            Taken: The id was used for another request.
        """
        definition = self.agent(agent)
        messages: Messages = (user(message),) if isinstance(message, str) else as_messages(message)
        # Earlier messages can be summarized.
        last = messages[-1] if messages else user("")
        self.require_fit(definition, model, last.text, last.attachments)
        messages = await self._with_stored_files(messages, user_id)
        ref = ExecutionRef(execution_id or uuid4(), self.tenant_id, session_id)
        # Refuses what no worker could carry out, before anything is stored.
        result_format = requested_output(output)
        plan = self.plan_of(
            definition, model, result_format, debug=debug, broadcast=broadcast, budgets=budgets
        )
        row = await self.store.accept(
            NewExecution(
                ref,
                self.spec_of(definition, model, result_format),
                messages,
                user_id=user_id,
                metadata=frozen_map(metadata, "metadata"),
                plan=plan_to_store(plan),
                task_queue=self.task_queue,
                notes=frozen_map({REQUEST_DIGEST: request} if request else {}),
                request=request_data(metadata),
            )
        )
        if request and row.metadata.get(REQUEST_DIGEST, request) != request:
            raise Taken(ref.execution_id)
        self.strike(Failpoint.API_AFTER_COMMIT)
        if row.status is not ExecutionStatus.PENDING:
            # It has started, perhaps so long ago that Temporal has deleted its history.
            return Execution[OutputT_co](self, ref, output)
        if row.is_waiting:
            await self.admit(self.tenant_id)
            return Execution[OutputT_co](self, ref, output)
        run = RunContext.from_request(ref, user_id, {"metadata": metadata})
        started = await self.launch(ref, plan, clocks=row.clocks, run=run)
        return Execution[OutputT_co](self, started.ref, output)

    async def read_attachment(self, attachment_id: UUID, user_id: str | None = None) -> Attachment:
        """A file with its content in `data`, such as one that a tool returned.

        Args:
            attachment_id: The id of the file.
            user_id: The user who reads it; None for the tenant.

        Raises:
            NotFound: There is none that the user may read.
        """
        attachment, data = await self.require_attachments().open(
            Scope(self.tenant_id, user_id), attachment_id
        )
        return replace(attachment, data=data)

    def require_attachments(self) -> Attachments:
        """The attached files.

        Raises:
            InvalidInput: There is no store for them.
        """
        if self.attachments is None:
            raise InvalidInput("this client has no store for attached files; pass Client(attachments=...)")
        return self.attachments

    async def _with_stored_files(self, messages: Messages, user_id: str | None) -> Messages:
        if not any(message.files for message in messages):
            return messages
        return await self.require_attachments().upload_files_of(self.tenant_id, user_id, messages)

    async def launch(
        self,
        ref: ExecutionRef,
        plan: ExecutionPlan,
        task_queue: str | None = None,
        clocks: StateInfo | None = None,
        run: RunContext = NO_RUN_CONTEXT,
        *,
        is_paused: bool = False,
    ) -> Execution:
        """Start the workflow of an accepted execution; a workflow that was started before is left unchanged.

        Args:
            ref: The execution.
            plan: Its plan.
            task_queue: The task queue; by default the client's.
            clocks: The session's clocks, which the execution continues.
            run: The user and the request; criteria of the plan can read their ids.
            is_paused: Whether it begins paused.
        """
        tracing.name_execution(ref)
        known = run.ids if plan.criteria else None
        start = ExecutionInput(
            ref,
            plan,
            self.search_attributes,
            clocks=clocks,
            run=known,
            public_url=self.public_url,
            is_paused=is_paused,
        )
        # The workflow may have ended already, if the message was accepted before.
        with suppress(WorkflowAlreadyStartedError):
            start_workflow = partial(self._start_workflow, task_queue=task_queue, user_id=run.user_id)
            await start_with_attributes(self.temporal, start, start_workflow)
        return Execution(self, ref)

    async def launch_from_store(self, launch: ExecutionLaunch) -> Execution:
        """Start the workflow of a stored execution in the trace of its request, and deliver its commands."""
        with reading("the execution's plan"):
            plan = ExecutionPlan.model_validate(launch.plan)
        with tracing.continue_trace_of(launch.plan):
            is_paused = launch.has_commands and await self._is_paused(launch.ref)
            execution = await self.launch(
                launch.ref, plan, launch.task_queue, launch.clocks, launch.run, is_paused=is_paused
            )
        if launch.has_commands:
            await CommandDelivery(self.store, execution.workflow, execution.ref).deliver_pending()
        return execution

    async def _is_paused(self, ref: ExecutionRef) -> bool:
        """Whether the stored commands of an execution pause it."""
        kinds = [command.kind for command in await self.store.pending_commands(ref)]
        last = next((kind for kind in reversed(kinds) if kind in PAUSES_AND_RESUMES), None)
        return last is CommandKind.PAUSE

    async def admit(self, tenant_id: str, *, is_repair: bool = False) -> int:
        """Start executions that wait for a place of their tenant, as far as places are free.

        If this process is lost before an admitted workflow has started, the reconciler starts it.

        Args:
            tenant_id: The tenant.
            is_repair: Whether to free the places of ended executions first.

        Returns:
            How many were admitted.
        """
        count = 0
        while True:
            admitted = await self.store.admit(tenant_id, is_repair=is_repair)
            self.strike(Failpoint.API_AFTER_COMMIT)
            for launch in admitted:
                await self.launch_from_store(launch)
            count += len(admitted)
            if len(admitted) < ADMITTED_AT_ONCE:
                return count

    async def _start_workflow(
        self, start: ExecutionInput, task_queue: str | None, user_id: str | None
    ) -> None:
        async with self.dispatch.start(start.ref.tenant_id, user_id, start.ref.execution_id):
            await self.temporal.start_workflow(
                AgentExecution.run,
                start,
                id=workflow_id(start.ref),
                task_queue=task_queue or self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                memo=memo_of(start),
                search_attributes=initial_attributes(start),
                static_summary=summary_of(start),
                static_details=details_of(start),
                # Its activities, subagents and later runs inherit it.
                priority=self.dispatch.priority(start.ref.tenant_id, user_id),
            )

    def derived_id(self, key: str) -> UUID:
        """The execution id that derives from a caller's key."""
        # A tenant with a slash would be ambiguous: it could also be a shorter tenant and a longer key.
        tenant = json_text([self.tenant_id]) if "/" in self.tenant_id else self.tenant_id
        return uuid5(_NAMESPACE, f"{tenant}/{key}")

    async def run(self, agent: str, message: str | Message, **given: Any) -> ExecutionRow:
        """Start an execution and wait until it ends; takes the arguments of `start`."""
        execution = await self.start(agent, message, **given)
        await execution.result()
        return await execution.get()

    def execution(self, execution_id: UUID | str, session_id: UUID | None = None) -> Execution:
        """A handle for an existing execution; reads nothing.

        Raises:
            InvalidInput: This is not an id.
        """
        try:
            parsed = UUID(str(execution_id))
        except ValueError:
            raise InvalidInput(
                f"{execution_id!r} is not an execution id; an id looks like {uuid4()}"
            ) from None
        return Execution(self, ExecutionRef(parsed, self.tenant_id, session_id))

    async def list(
        self, *, status: ExecutionStatus | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """List executions, newest first."""
        return await self.store.executions(self.tenant_id, status=status, cursor=cursor, limit=limit)

    async def search(
        self,
        text: str,
        wanted: ExecutionFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[TextHit]:
        """Search messages, replies, calls and results: those of the newest execution first.

        Args:
            text: Words, and `"phrases"`, `-words` to exclude, `OR` between alternatives, `prefix*`.
            wanted: In which executions; default: in all of the tenant.
            cursor: The cursor of the previous page.
            limit: The size of the page.

        Raises:
            InvalidInput: It names no word, or too many.
            SearchTooSlow: It takes too long.
        """
        query, wanted = TextQuery.parse(text), wanted or ExecutionFilter()
        return await self.store.search_text(Scope(self.tenant_id), query, wanted, cursor=cursor, limit=limit)

    async def ledger(self, execution_id: UUID | str) -> AsyncGenerator[LedgerEntry]:
        """Iterate over the ledger of an execution: facts and decisions, each with the hash of its entry.

        Raises:
            InvalidInput: This is not an id.
            NotFound: There is no such execution.
        """
        async for entry in each_entry(self.store, self.execution(execution_id).ref):
            yield entry

    async def audit(self, execution_id: UUID | str) -> AuditReport:
        """Check that nothing was changed in the ledger of an execution, and in what it records.

        Raises:
            InvalidInput: This is not an id.
            NotFound: There is no such execution.
        """
        return await audit_execution(self.store, self.execution(execution_id).ref)

    async def diff(self, a: UUID | str, b: UUID | str) -> Comparison:
        """Compare two executions: settings, steps, calls with their arguments, decisions, tokens and cost.

        Steps that a fork shares with its origin are the same steps; others are aligned by their calls.

        Raises:
            InvalidInput: One of them is not an id.
            NotFound: One of them does not exist, or was removed.
        """
        return await compare_executions(
            self.store, self.execution(a).ref, self.execution(b).ref, in_full=True
        )

    def what_if(
        self, change: PolicyChange | None = None, wanted: RecordFilter | None = None, limit: int | None = None
    ) -> WhatIf:
        """Repeat the decisions of past executions under another policy; asks no model.

        Args:
            change: What differs from the recorded policy.
            wanted: Which executions; default: all of the tenant.
            limit: The most executions to examine, the newest ones.

        Raises:
            InvalidInput: A limit or a criterion cannot be used.
        """
        scope = Scope(self.tenant_id)
        return WhatIf(self.store, scope, change or PolicyChange(), wanted or RecordFilter(), limit)

    def agent(self, name: str) -> AgentDefinition:
        """The definition of an agent.

        Raises:
            UnknownName: There is none; the message lists the known names.
        """
        if name not in self.agents:
            raise UnknownName("agent", name, self.agents)
        return self.agents[name]


def plan_to_store(plan: ExecutionPlan) -> FrozenDict:
    """Return a plan as it is stored, with the trace of the request that the execution is accepted with."""
    return frozen_map(plan.model_dump(mode="json") | tracing.trace_to_store())
