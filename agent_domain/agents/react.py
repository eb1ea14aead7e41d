"""ReAct: tools for models without native tool calls.

The model answers in JSON with one decision at a time: call a tool, or give the final answer.
The decision and its result enter the conversation as plain text (`Thought:`, `Action:`,
`Observation:`), which every model can read. The loop runs, approves and publishes such a call
like any other.

If a reply contains no readable decision, the driver asks again within the step. If that does not
help, or if the decision is invalid, the step fails with a validation error, which is reported like
the failure of a tool that the model never called. The error policy decides what follows.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

from everstep.agent_domain.agents.drivers import Model, OnText, Reply, StepDriver, ignore_text, new_call_id
from everstep.agent_domain.agents.structured_result import is_result_refusal, result_instructions
from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput, InvalidModelOutput
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.messages.cached_context import (
    CachedContext,
    InferenceRequest,
    ResponseFormat,
)
from everstep.agent_domain.messages.messages import Messages, assistant, system, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.tools.tools import (
    Toolbox,
    ToolCall,
    ToolExecution,
    result_text,
    result_value,
)
from everstep.agent_domain.values import FrozenDict, FrozenList, frozen_map, json_text, parse_json, truncate

TOOL_MISSING = "A call_tool decision needs a tool"
TOOL_UNKNOWN = "No tool has that name, use one from the catalogue"
ANSWER_MISSING = "A final_answer decision needs an answer"
TYPE_UNKNOWN = "Set type to call_tool or final_answer"
ARGS_ARRAY = "Pass args as a JSON object keyed by parameter name, not as an array"
ARGS_MISSING = "A call_tool decision needs args"

MAX_DETAIL = 200
"""Characters of the error about a reply's JSON; it contains keys of the reply, which have any length."""

NOT_A_DECISION = "Thought: My reply was not a valid decision"

# Arguments differ between tools, which a strict schema cannot express.
DECISION_FORMAT = ResponseFormat(
    frozen_map(
        {
            "type": "object",
            "properties": {
                "thought": {"type": "string"},
                "type": {"type": "string", "enum": ["call_tool", "final_answer"]},
                "tool": {"type": "string"},
                "args": {"type": "object"},
                "answer": {"type": "string"},
            },
            "required": ["thought", "type"],
        }
    ),
    type="json_object",
    name="decision",
    strict=False,
)

RULES = """\
Work on the task step by step. Each of your replies is one decision: a single JSON object and nothing else.

To call a tool:
{"thought":"<WHY_THIS_COMES_NEXT>","type":"call_tool","tool":"<TOOL_NAME>","args":{"<PARAMETER>":"<VALUE>"}}
To answer:
{"thought":"<WHY_NOTHING_IS_LEFT>","type":"final_answer","answer":"<ANSWER_FOR_THE_USER>"}

- Replace each `<PLACEHOLDER>` with words of your own.
- Call one tool at a time, by its name in the catalogue.
- `args` is an object keyed by parameter name that fits the tool's schema; leave out what you do not need.
- What a tool returned comes back as a message that begins with `Observation:`. Never write one yourself.
- After `Observation: Error:` decide again: correct the decision, or try another way.
- Answer as soon as you can. Only `answer` reaches the user.
"""

_PLACEHOLDER = re.compile(r"\s*<[A-Z_]+>\s*")
"""Small models copy the sample values; a copied placeholder counts as missing."""

PLAIN_ANSWER = (
    "Give the final answer now, as plain text for the user. "
    "Lines that begin with Thought, Action or Observation are notes of the work, which the user cannot see."
)


# --- Decisions ---


@dataclass(frozen=True, slots=True)
class CallTool:
    """A decision to call a tool; `args` is not validated yet."""

    thought: str
    tool: str
    args: Any


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """A decision to give the final answer."""

    answer: str


@dataclass(frozen=True, slots=True)
class UnusableReply:
    """An unusable reply; `message` gives the reason to the model."""

    stage: Literal["decision_extraction", "decision_validation"]
    message: str


ReActDecision: TypeAlias = CallTool | FinalAnswer | UnusableReply


def parse_react_decision(text: str, tools: Collection[str]) -> ReActDecision:
    """Parse the decision in a reply.

    Args:
        text: The model's reply.
        tools: The names of the agent's tools.
    """
    try:
        data = parse_json_object(text)
    except InvalidInput as error:
        detail = truncate(str(error), MAX_DETAIL)
        return UnusableReply(
            "decision_extraction", f"Reply with one JSON object that is your decision ({detail})"
        )
    return decision_from(data, tools)


def parse_json_object(text: str) -> FrozenDict:
    """Parse the JSON object in a reply; a code fence or text around it is ignored.

    Raises:
        InvalidInput: There is no JSON object.
    """
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise InvalidInput("the reply holds no JSON object")
    return frozen_map(parse_json(text[start : end + 1], "the reply"), "the reply")


def decision_from(data: FrozenDict, tools: Collection[str]) -> ReActDecision:
    """Validate the decision; an invalid one becomes `Unusable`."""
    thought, tool, answer = (_field_text(data.get(key)) for key in ("thought", "tool", "answer"))
    match data.get("type"):
        case "call_tool" if not tool:
            problem = TOOL_MISSING
        case "call_tool" if tool not in tools:
            problem = TOOL_UNKNOWN
        case "call_tool":
            return CallTool(thought, tool, data.get("args"))
        case "final_answer" if not answer:
            problem = ANSWER_MISSING
        case "final_answer":
            return FinalAnswer(answer)
        case _:
            problem = TYPE_UNKNOWN
    return UnusableReply("decision_validation", problem)


def _field_text(value: object) -> str:
    """A field as text: models also send numbers and objects. Blank text and placeholders become empty."""
    text = "" if value is None else result_text(value)
    return text if text.strip() and not _is_copied_placeholder(text) else ""


def _is_copied_placeholder(text: str) -> bool:
    return _PLACEHOLDER.fullmatch(text) is not None and text.strip() in RULES


def args_problem(args: object) -> str | None:
    """The reason why the arguments fit no tool, or None; the executor checks for missing arguments."""
    match args:
        case FrozenDict():
            return None
        case FrozenList():
            return ARGS_ARRAY
        case _:
            return ARGS_MISSING


def usable_args(args: FrozenDict, schema: Mapping[str, Any]) -> FrozenDict:
    """The arguments that the tool's schema names and that are not null."""
    known = args.keys() if _accepts_any_args(schema) else schema["properties"].keys()
    return FrozenDict({key: value for key, value in args.items() if key in known and value is not None})


def _accepts_any_args(schema: Mapping[str, Any]) -> bool:
    """Whether the tool accepts arguments with any name."""
    return "properties" not in schema or schema.get("additionalProperties", False) is not False


# --- Texts ---


def instructions(tools: Toolbox, output: ResponseFormat | None = None) -> str:
    """The system prompt: the rules of decisions, the tools with their schemas, and the form of the answer."""
    functions = [cast("Mapping[str, Any]", schema["function"]) for schema in tools.schemas]
    catalogue = [{key: function.get(key) for key in ("name", "description")} for function in functions]
    schemas = [{key: function.get(key) for key in ("name", "parameters")} for function in functions]
    answer = f"\n\n{result_instructions(output)}" if output else ""
    tools_text = f"Tool catalogue:\n{json_text(catalogue)}\n\nTool schemas:\n{json_text(schemas)}"
    return f"{RULES}\n{tools_text}{answer}"


def react_reply_messages(step: AgentStep) -> Messages:
    """The messages of a reply: the answer, the decision, or the report of an unusable one."""
    response = step.inference_response or InferenceResponse()
    if step.tool_calls:
        call = step.tool_calls[0]
        args_text = call.arguments if isinstance(call.arguments, str) else json_text(call.arguments)
        return (assistant(f"Thought: {response.text}\nAction: {call.name}\nAction Input: {args_text}"),)
    unusable = next((each for each in step.tool_executions if not is_result_refusal(each)), None)
    return unusable_reply_messages(unusable.text) if unusable else (assistant(response.text),)


def react_result_messages(execution: ToolExecution) -> Messages:
    """The message with the result of a call."""
    return (user(f"Observation: {_observation_text(execution)}"),)


def unusable_reply_messages(error: str) -> Messages:
    """The messages after a reply without a usable decision."""
    return (assistant(NOT_A_DECISION), user(f"Observation: {error}"))


def _observation_text(execution: ToolExecution) -> str:
    if execution.has_error:
        return execution.text
    read = execution.told or result_value(execution.result, execution.call.name)
    return f"{execution.note}{json_text(read)}"


# --- The driver ---


class ReActDriver(StepDriver):
    """Asks the model for decisions in JSON: one tool call at a time, or the answer."""

    asks_preset = True

    def __init__(
        self, model: Model | None = None, max_retries: int = 2, final_via_inference: bool = False
    ) -> None:
        require_integer_at_least("max_retries", max_retries, 0)
        self.model = model
        self.max_retries = max_retries
        """How often the driver asks again within a step after an unreadable reply."""
        self.final_via_inference = final_via_inference
        """Whether a second model call writes the answer as plain text, instead of the decision's own text."""

    async def infer(self, state: AgentState, on_text: OnText = ignore_text) -> Reply:
        """Ask for a decision. Only the text of an answer is streamed: the rest is not meant for users."""
        decision, response = await self._ask_for_decision(state)
        if isinstance(decision, FinalAnswer):
            return Reply(await self._final_response(state, decision.answer, response, on_text))
        if isinstance(decision, CallTool) and state.execution.is_last_turn:
            return Reply(await self._plain_answer(state, decision.thought, response, on_text))
        if isinstance(decision, CallTool):
            return self._call_reply(state, decision, response)
        error = StepError.of(InvalidModelOutput(decision.message), decision.stage)
        call = ToolCall(new_call_id(state), decision.stage)
        return Reply(response, StepType.ERROR, executions=(ToolExecution(call, error=error),))

    async def _ask_for_decision(self, state: AgentState) -> tuple[ReActDecision, InferenceResponse]:
        """The decision, and its response with the summed usage of all attempts."""
        conversation, cached = state.messages, self._build_context(state)
        decision, response = await self._ask_model(conversation, cached)
        for _ in range(self.max_retries):
            if not isinstance(decision, UnusableReply) or decision.stage == "decision_validation":
                break
            conversation = (*conversation, *unusable_reply_messages(f"Error: {decision.message}"))
            usage = response.usage
            decision, response = await self._ask_model(conversation, cached)
            response = replace(response, usage=usage + response.usage)
        return decision, response

    async def _ask_model(
        self, conversation: Messages, cached: CachedContext
    ) -> tuple[ReActDecision, InferenceResponse]:
        response = await self.known_model().respond(
            InferenceRequest.compile(conversation, cached), ignore_text
        )
        # The conversation contains the driver's texts instead of the reply to which these belong.
        response = replace(response, tool_calls=(), items=FrozenList())
        return parse_react_decision(response.text, self.tools.names), response

    def request(self, state: AgentState) -> InferenceRequest:
        """The request for a decision."""
        return InferenceRequest.compile(state.messages, self._build_context(state))

    def _build_context(self, state: AgentState) -> CachedContext:
        """The cached context with the instructions, which describe the tools, and without tool schemas."""
        cached = _without_tools(state.cached_context)
        prompt = instructions(self.tools, cached.output)
        return cached.with_system_prompt(prompt).with_response_format(DECISION_FORMAT)

    def _call_reply(self, state: AgentState, decision: CallTool, response: InferenceResponse) -> Reply:
        """The reply with a call to run, or with a failed call if the arguments are not an object."""
        call_id, refusal = new_call_id(state), args_problem(decision.args)
        if refusal:
            call = ToolCall(call_id, decision.tool, malformed=json_text(decision.args))
            executions = (ToolExecution(call, error=StepError(refusal, tool_name=decision.tool)),)
        else:
            args = usable_args(decision.args, self.tools.get(decision.tool).schema)
            call, executions = ToolCall(call_id, decision.tool, args), ()
        response = replace(response, text=decision.thought, tool_calls=(call,))
        return Reply(response, StepType.TOOL_EXECUTION, executions=executions)

    async def _final_response(
        self, state: AgentState, answer: str, response: InferenceResponse, on_text: OnText
    ) -> InferenceResponse:
        """The decision's answer, or that of a second call without the decision instructions.

        A structured result is always that of the decision: the second call is asked for plain text.
        """
        if not self.final_via_inference or state.cached_context.output:
            on_text(answer)
            return replace(response, text=answer)
        return await self._plain_answer(state, answer, response, on_text)

    async def _plain_answer(
        self, state: AgentState, answer: str, response: InferenceResponse, on_text: OnText
    ) -> InferenceResponse:
        """The answer of a second call without the decision instructions; if it is blank, the given one."""
        own = CachedContext(messages=(system(PLAIN_ANSWER),))
        request = InferenceRequest.compile(state.messages, _without_tools(state.cached_context), own)
        plain = await self.known_model().respond(request, on_text)
        if not plain.text.strip():
            on_text(answer)
        return InferenceResponse(
            plain.text if plain.text.strip() else answer,
            finish_reason=plain.finish_reason,
            usage=response.usage + plain.usage,
            model=plain.model,
        )

    def said(self, step: AgentStep) -> Messages:
        """The answer, or the thought and the action."""
        return react_reply_messages(step)

    def answered(self, execution: ToolExecution) -> Messages:
        """The observation."""
        return react_result_messages(execution)

    def refused(self, refusal: ToolExecution) -> Messages:
        """The observation about a structured result that does not fit its schema."""
        return react_result_messages(refusal)


def _without_tools(context: CachedContext) -> CachedContext:
    return replace(context, tools=(), tool_choice=None)
