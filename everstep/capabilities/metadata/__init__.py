"""`metadata_write`, `metadata_read`, `metadata_list`: notes of an agent for its own later steps."""

from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.scratchpad import (
    LIST,
    READ,
    WRITE,
    MetadataPolicy,
    MetadataWrite,
    list_text,
    occupied_keys,
    read_text,
    refusal,
    refusal_text,
)
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions, ToolResult
from everstep.agent_domain.values import FrozenDict, frozen_map, valid_text


def _schema(**properties: object) -> FrozenDict:
    return frozen_map({"type": "object", "properties": properties, "required": list(properties)})


_KEY = {"type": "string", "description": "The name of the note."}


class MetadataWriteTool:
    """Stores a value at the end of the step."""

    name = WRITE
    description = "Store a value under a key, for later steps. It can be read from the next step on."
    schema = _schema(key=_KEY, value={"description": "Any JSON value; null is a value, too."})
    options = ToolOptions(quick=True)

    def __init__(self, policy: MetadataPolicy) -> None:
        self.policy = policy

    async def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Store the value; return it as text, or the reason for a refusal."""
        write = MetadataWrite(args["key"], args["value"])
        used_keys = occupied_keys(context.metadata, context.earlier, self.policy)
        reason = refusal(write, used_keys, self.policy)
        return (
            refusal_text(reason) if reason else ToolResult(write.text, frozen_map({write.key: write.value}))
        )


class MetadataReadTool:
    """Reads a value as of the beginning of the step."""

    name = READ
    description = "Read what is stored under a key."
    schema = _schema(key=_KEY)
    options = ToolOptions(quick=True)

    async def call(self, args: dict[str, Any], context: ToolContext) -> str:
        """The value as text, or the list of keys if there is none."""
        return read_text(valid_text(args["key"], "key"), context.metadata)


class MetadataListTool:
    """Lists the keys."""

    name = LIST
    description = "List the keys under which something is stored, with the types of the values."
    schema = _schema()
    options = ToolOptions(quick=True)

    async def call(self, args: dict[str, Any], context: ToolContext) -> str:
        """The keys as text."""
        del args
        return list_text(context.metadata)


class UseMetadataTools:
    """Gives an agent a scratchpad of key-value notes."""

    name = "metadata"

    def __init__(self, policy: MetadataPolicy | None = None) -> None:
        self.policy = policy or MetadataPolicy()

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the three tools."""
        return builder.with_tools([MetadataWriteTool(self.policy), MetadataReadTool(), MetadataListTool()])
