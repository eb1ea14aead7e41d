"""Agents whose models and tools are stood in for by the record of a run; everything else of them is real."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from everstep.agent_domain.agents.call_limits import CallLimits, call_limits_of
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import (
    Model,
    OnText,
    Reply,
    StepDriver,
    ToolCallingDriver,
    ignore_text,
    new_call_id,
)
from everstep.agent_domain.agents.spawning import CanSpawn, find_definition
from everstep.agent_domain.agents.structured_result import VALIDATION_STAGE
from everstep.agent_domain.agents.token_counting import ContextWindow, window_of
from everstep.agent_domain.errors import (
    InvalidInput,
    InvalidModelOutput,
    ModelError,
    ModelTimeout,
    RateLimited,
    ToolFailed,
    UnknownName,
)
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.resources import NO_RESOURCES, Resources
from everstep.agent_domain.tools.tools import (
    CanRefuse,
    HandlesUnstorableText,
    Tool,
    Toolbox,
    ToolCall,
    ToolContext,
    ToolExecution,
    ToolOptions,
    ToolResult,
    options_of,
    tool_schema,
)
from everstep.agent_domain.tools.toolsets import Asker, ListedTool, Toolset
from everstep.runtime.replay.current import INNER_KEY, STEP
from everstep.runtime.replay.recorded import Recorded
from everstep.steps import json_schema


class RecordedModel:
    """Answers with the record of the step, or of the question of a processor, that is under way."""

    is_scripted = True

    def __init__(self, recorded: Recorded, limits: CallLimits, window: ContextWindow | None) -> None:
        self._recorded = recorded
        self.call_limits = limits
        self.window = window

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Return the recorded answer, or raise the recorded error."""
        where = STEP.get()
        if where is None:
            raise InvalidInput("a replay asks a model outside of a step")
        key = INNER_KEY.get()
        if key:
            return self._inner_answer(where[0], key)
        step = self._recorded.step(*where)
        # A step that a hook of its calls failed has an answer as well.
        if step.facts and step.facts.is_failure and not step.calls:
            error = step.errors[0] if step.errors else step.facts.own_errors[0]
            raise error_from(error)
        response = InferenceResponse.from_dict(step.response or {})
        if response.text:
            on_text(response.text)
        return response

    def _inner_answer(self, execution_id: UUID, key: str) -> InferenceResponse:
        run = self._recorded.runs.get(execution_id)
        answers = run.inner_answers if run else ()
        found = next((answer for answer in answers if answer.key == key), None)
        if found is None and run and run.plan.get("processes"):
            # Failed calls leave no answer, and the step after it has the error if the processor raised it.
            number = int(key.split("/")[1])
            failed = run.step(number + 1)
            if failed and failed.facts and failed.facts.is_failure and failed.errors:
                raise error_from(failed.errors[0])
            raise ModelError("the recorded run has no answer to this question")
        if found is None:
            raise self._recorded.findings.end(
                f"a processor asks a model a question ({key}) that the recorded run did not ask"
            )
        return InferenceResponse.from_dict(found.response)


class _PublicTimeout(ToolFailed, TimeoutError):
    """A tool was not done in time, and everyone may read the message."""


def error_from(error: StepError) -> Exception:
    """An exception that becomes this error again."""
    base: type[Exception] = ModelError
    match error.type:
        case ErrorType.TIMEOUT if error.is_public:
            base = _PublicTimeout
        case _ if error.is_public:
            base = ToolFailed
        case ErrorType.RATE_LIMIT:
            base = RateLimited
        case ErrorType.TIMEOUT:
            base = ModelTimeout
        case ErrorType.VALIDATION:
            base = InvalidModelOutput
        case _:
            """Any other error of a model or a tool."""
    name = error.exception or base.__name__
    kind = base if name == base.__name__ else type(name, (base,), {})
    made = kind(error.message)
    if isinstance(made, ModelError):
        made.advice = error.advice
    return made


class RecordedDriver(StepDriver):
    """The agent's driver with recorded replies: it writes the same messages about them."""

    asks_preset = False

    def __init__(self, inner: StepDriver, model: Model, recorded: Recorded) -> None:
        self.inner = inner
        self.model = model
        self.recorded = recorded

    def equip(self, tools: Toolbox, *, parallel_tools: bool = True) -> None:
        """Set the agent's tools."""
        super().equip(tools, parallel_tools=parallel_tools)
        self.inner.equip(tools, parallel_tools=parallel_tools)

    def request(self, state: AgentState) -> InferenceRequest:
        """The request of the agent's driver."""
        return self.inner.request(state)

    async def infer(self, state: AgentState, on_text: OnText = ignore_text) -> Reply:
        """Return the recorded reply of the step."""
        response = await self.known_model().respond(self.request(state), on_text)
        where = STEP.get()
        step = self.recorded.step(*where) if where else None
        facts = step.facts if step else None
        if step is None or facts is None:
            raise InvalidInput("a replay asks a driver outside of a step")
        if facts.is_failure:
            return Reply(response)
        calls = {call.id: call for call in response.tool_calls}
        unmade = [ToolCall(new_call_id(state), failure.tool_name or "") for failure in facts.pseudo_errors]
        failed = [calls[call.id] for call in facts.calls if call.error and call.id in calls]
        errors = () if facts.own_errors else step.errors
        executions = tuple(
            ToolExecution(call, error=error)
            for call, error in zip([*unmade, *failed], errors, strict=False)
            # A result that does not fit its schema is checked again.
            if call.name != VALIDATION_STAGE
        )
        return Reply(
            response,
            facts.own_type,
            step.errors if facts.own_errors else (),
            executions,
            runs_tools=not facts.calls or bool(step.calls),
        )

    def said(self, step: AgentStep) -> Messages:
        """The messages of the agent's driver."""
        return self.inner.said(step)

    def answered(self, execution: ToolExecution) -> Messages:
        """The messages of the agent's driver."""
        return self.inner.answered(execution)

    def outputs(self, step: AgentStep) -> Messages:
        """The messages of the agent's driver."""
        return self.inner.outputs(step)

    def refused(self, refusal: ToolExecution) -> Messages:
        """The messages of the agent's driver."""
        return self.inner.refused(refusal)


class RecordedTool:
    """A tool as models and the loop see it; its results are recorded."""

    def __init__(self, tool: Tool, recorded: Recorded) -> None:
        self._tool = tool
        self._recorded = recorded
        self.options: ToolOptions = options_of(tool)

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self._tool.name

    @property
    def description(self) -> str:
        """The description of the tool."""
        return self._tool.description

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the arguments."""
        return self._tool.schema

    def to_tool_schema(self) -> dict[str, Any]:
        """The tool as models read it."""
        return tool_schema(self._tool)

    async def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Check the arguments, and return the recorded result or raise the recorded error."""
        call = self._recorded.call(context.execution_id, context.tool_call_id, self.name)
        record = call.record
        if record is None:
            raise InvalidInput(f"the call {context.tool_call_id} has no result in the record")
        if record.error is not None:
            raise error_from(record.error)
        problem = json_schema.check(dict(self.schema), args)
        if problem is not None:
            self._recorded.findings.note(
                f"the recorded arguments of {self.name} do not fit its schema any more: {problem}"
            )
        for attachment in record.attachments:
            context.artifacts.restore(attachment)
        return ToolResult(record.result, call.changes.values, record.own_text or "")


class _RefusingTool(RecordedTool):
    def refusal(self, args: Mapping[str, Any]) -> str | None:
        """The refusal of the tool."""
        return self._tool.refusal(args) if isinstance(self._tool, CanRefuse) else None


class _ExplainingTool(RecordedTool):
    def unstorable(self, args: Mapping[str, Any]) -> str | None:
        """The explanation of the tool."""
        return self._tool.unstorable(args) if isinstance(self._tool, HandlesUnstorableText) else None


class _RefusingExplainingTool(_RefusingTool, _ExplainingTool):
    pass


def recorded_tool(tool: Tool, recorded: Recorded) -> Tool:
    """The tool with recorded results. A tool that starts subagents is kept: their answers are recorded."""
    if isinstance(tool, CanSpawn):
        return tool
    kinds: dict[tuple[bool, bool], Callable[[Tool, Recorded], Tool]] = {
        (False, False): RecordedTool,
        (True, False): _RefusingTool,
        (False, True): _ExplainingTool,
        (True, True): _RefusingExplainingTool,
    }
    return kinds[isinstance(tool, CanRefuse), isinstance(tool, HandlesUnstorableText)](tool, recorded)


class _RecordedToolset:
    """A toolset whose list is recorded, as are the results of its tools."""

    def __init__(self, toolset: Toolset, recorded: Recorded) -> None:
        self._toolset = toolset
        self._recorded = recorded

    @property
    def name(self) -> str:
        """The name of the toolset."""
        return self._toolset.name

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        """Raise the recorded error: a list that was fetched is in the record."""
        where = STEP.get()
        step = self._recorded.step(*where) if where else None
        if step and step.facts and step.facts.is_failure and step.errors:
            raise error_from(step.errors[0])
        del asker
        raise self._recorded.findings.end(
            f"the tools of {self.name} are listed, and the recorded run had no such toolset"
        )

    def tool(self, listed: ListedTool) -> Tool:
        """A tool with recorded results."""
        return recorded_tool(self._toolset.tool(listed), self._recorded)


class AgentNotFound(InvalidInput):
    """The agent of a run is not among those of this process."""


class RecordedAgents:
    """The agents of a replay."""

    def __init__(
        self,
        agents: Mapping[str, AgentDefinition],
        recorded: Recorded,
        model_of: Callable[[str, str | None], object],
        resources: Resources = NO_RESOURCES,
    ) -> None:
        self._agents = agents
        self._recorded = recorded
        self._model_of = model_of
        self._resources = resources
        self._made: dict[str, AgentDefinition] = {}

    @property
    def resources(self) -> Resources:
        """The objects for hooks and processors."""
        return self._resources

    def real(self, name: str) -> AgentDefinition:
        """The agent as it is defined.

        Raises:
            AgentNotFound: This process does not have it.
        """
        found = find_definition(self._agents, name)
        if found is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise AgentNotFound(
                f"the agent '{name}' is not found (known: {known}): set EVERSTEP_AGENTS, such as "
                "my_app.agents:agents, or 'agents' in everstep.toml, and run the test in that folder"
            )
        return found

    def definition(self, name: str) -> AgentDefinition:
        """The agent with recorded tools."""
        if name not in self._made:
            real = find_definition(self._agents, name)
            if real is None:
                raise UnknownName("agent", name, self._agents)
            tools = Toolbox.of(recorded_tool(tool, self._recorded) for tool in real.tools)
            toolsets = tuple(_RecordedToolset(each, self._recorded) for each in real.toolsets)
            # A recorded failure is the last of its attempts.
            base_plan = real.base_plan.model_copy(update={"model_attempts": 1})
            self._made[name] = replace(real, tools=tools, toolsets=toolsets, base_plan=base_plan)
        return self._made[name]

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """The agent's driver with recorded replies."""
        definition = self.definition(name)
        own = definition.driver if isinstance(definition.driver, StepDriver) else ToolCallingDriver()
        inner = definition.equipped_driver(own)
        return definition.equipped_driver(RecordedDriver(inner, self._model(name, preset), self._recorded))

    def model(self, name: str, choice: ModelChoice = None) -> Model:
        """A model with the recorded answers."""
        return self._model(name, choice if isinstance(choice, str) else None)

    def _model(self, name: str, preset: str | None) -> RecordedModel:
        model = self._model_of(name, preset)
        return RecordedModel(self._recorded, call_limits_of(model), window_of(model))
