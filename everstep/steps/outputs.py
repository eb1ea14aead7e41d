"""Structured results: validated after each answer, and read again when the execution ends."""

from dataclasses import replace
from typing import Any

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Reply, new_call_id
from everstep.agent_domain.agents.structured_result import result_refusal
from everstep.agent_domain.capabilities.data_types import parse_answer, read_data, value_of
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import thaw
from everstep.steps import json_schema


def with_checked_result(definition: AgentDefinition, state: AgentState, reply: Reply) -> Reply:
    """Return the reply; an answer that is no result of the expected form gets an error that the model reads.

    Args:
        definition: The agent.
        state: The state in which the step started; its cached context has the format.
        reply: The model's reply.
    """
    output, response = state.cached_context.output, reply.response
    is_answer = not (response.tool_calls or reply.errors or reply.executions)
    if output is None or not is_answer or reply.own_type is StepType.TOOL_EXECUTION:
        return reply
    try:
        read_output(definition, output, response.text)
    except InvalidInput as error:
        refusal = result_refusal(new_call_id(state), str(error), response.finish_reason)
        return replace(reply, own_type=StepType.ERROR, executions=(refusal,))
    return reply


def read_output(definition: AgentDefinition | None, output: ResponseFormat, text: str) -> Any:
    """Read the result in an answer, as frozen JSON.

    Args:
        definition: The agent, whose type reads its own results; None if this process does not have it.
        output: The format of the result.
        text: The answer.

    Raises:
        InvalidInput: The answer has no result that fits.
    """
    result = output.unwrapped(parse_answer(text))
    if definition is not None and definition.output_type is not None and definition.output == output:
        return read_data(definition.output_type, result)
    problem = json_schema.check(output.schema, output.wrapped(result))
    if problem:
        raise InvalidInput(problem)
    return result


def with_requested_output(definition: AgentDefinition, state: AgentState) -> AgentState:
    """The state with the cached context of the agent, or else with what its own lacks for the result."""
    cached = state.cached_context
    if cached.is_empty:
        return state.with_cached_context(definition.cached_context)
    if definition.output is None or cached.response_format is not None:
        return state
    return state.with_cached_context(cached.with_response_format(definition.output))


def with_output(definition: AgentDefinition, state: AgentState) -> AgentState:
    """The state at the end of a run, with its structured result."""
    output = state.cached_context.output
    data = find_output(definition, output, state.final_response)
    if data is None:
        return state
    is_typed = definition.output_type is not None and definition.output == output
    value = value_of(definition.output_type, data) if is_typed else thaw(data)
    return replace(state, execution=replace(state.execution, output=value, output_data=data))


def find_output(definition: AgentDefinition | None, output: ResponseFormat | None, text: str | None) -> Any:
    """The result in the last answer of an execution, as frozen JSON; None if there is none that fits."""
    if output is None or text is None:
        return None
    try:
        return read_output(definition, output, text)
    except InvalidInput:
        # The step of the answer has this error.
        return None
