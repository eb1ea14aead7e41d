"""Structured results of executions: their format in a request, and their type in what a client returns."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Generic

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.capabilities.data_types import value_of
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.output_schema import WHERE
from everstep.agent_domain.messages.response_format import OutputT_co, ResponseFormat, output_format
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.values import thaw
from everstep.steps import json_schema
from everstep.workflows.contracts import ExecutionResult


@dataclass(frozen=True, slots=True)
class CompletedExecution(ExecutionResult, Generic[OutputT_co]):
    """How an execution ended, with its structured result."""

    output: OutputT_co | None = None
    """The result in the type of the request or of the agent, else as JSON; None if it ended without one."""

    @classmethod
    def of(cls, result: ExecutionResult, output: Any) -> "CompletedExecution[Any]":
        """The end of an execution with its result."""
        return cls(**{field.name: getattr(result, field.name) for field in fields(result)}, output=output)


def requested_output(output: Any) -> ResponseFormat | None:
    """The format of the result that a request asks for; None for that of the agent.

    Raises:
        InvalidInput: There is no usable schema.
    """
    if output is None or (isinstance(output, ResponseFormat) and output.is_checked):
        return output
    found = output_format(output)
    if isinstance(output, Mapping | ResponseFormat):
        json_schema.require_usable(found.schema, WHERE)
    return found


def typed_result(row: ExecutionRow, requested: Any, definition: AgentDefinition | None) -> Any:
    """The result of an execution; None if it ended without one.

    Args:
        row: The execution.
        requested: The type or schema that its request asked for, if this process made it.
        definition: Its agent, if this process has it. The result is in the agent's type if it fits: a request
            may have asked for another form.

    Raises:
        InvalidInput: The result does not fit the requested type. Workers check its schema, and not the
            validators of its class.
    """
    data = row.output.get("data") if row.output else None
    if data is None:
        return None
    if requested is not None and not isinstance(requested, Mapping | ResponseFormat):
        return value_of(requested, data)
    if requested is None and definition is not None and definition.output_type is not None:
        with suppress(InvalidInput):
            return value_of(definition.output_type, data)
    return thaw(data)
