"""`extract_data`: a model extracts data of a registered schema from text."""

import re
from collections.abc import Mapping
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.capabilities.data_types import parse_answer
from everstep.agent_domain.capabilities.extraction import (
    JSON_SCHEMA,
    MAX_CALL_RETRIES,
    TEXT,
    TOOL,
    Nothing,
    SchemaDefinition,
    SchemaRegistry,
    StructuredOutputPolicy,
    argument_problem,
    extraction_error,
    extraction_text,
    nothing_found_reason,
    retry_count,
)
from everstep.agent_domain.capabilities.scratchpad import (
    MetadataPolicy,
    MetadataWrite,
    occupied_keys,
    refusal,
)
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.messages.cached_context import InferenceRequest, ResponseFormat
from everstep.agent_domain.messages.messages import Message, assistant, system, user
from everstep.agent_domain.tools.inquiry import AskModel, ModelChoice
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions, ToolResult
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, valid_text
from everstep.capabilities.metadata import MetadataWriteTool

PROMPT = (
    "Extract data from the text that the user sends. Answer with one JSON value that satisfies the schema, "
    "and with nothing else. Take everything from the text, and invent nothing."
)
MAYBE = (
    "If the text does not hold what is asked for, answer with value null, and say in detail what is missing."
)
ASK_AGAIN = "That does not fit: {problem}. Answer again, with the JSON value alone."


class ExtractDataTool:
    """Asks a model for data, until it fits the schema or the retries are used up."""

    name = TOOL
    description = "Extract data of a known schema from text."
    options = ToolOptions()

    def __init__(
        self,
        schemas: SchemaRegistry,
        policy: StructuredOutputPolicy,
        notes: MetadataPolicy | None = None,
    ) -> None:
        self.schemas = schemas
        self.policy = policy
        self.notes = notes or MetadataPolicy()
        """The limits for stored notes."""

    def of(self, parent: AgentDefinition) -> "ExtractDataTool":
        """The tool for an agent: if it has a scratchpad, the limits of that apply here, too."""
        pads = (tool.policy for tool in parent.tools if isinstance(tool, MetadataWriteTool))
        return ExtractDataTool(self.schemas, self.policy, next(pads, self.notes))

    @property
    def schema(self) -> FrozenDict:
        """The schema of the arguments; `schema` is one of the registered names."""
        lines = [f"- {name}: {self.schemas.get(name).description}" for name in self.schemas.names]
        properties = {
            "input": {"type": "string", "description": "The text to extract from."},
            "schema": {
                "type": "string",
                "enum": list(self.schemas.names),
                "description": "\n".join(["What to extract.", *lines]),
            },
            "store_as": {
                "type": "string",
                "description": "The metadata key to store the data under, if any.",
            },
            "max_retries": {"type": "integer", "minimum": 0, "maximum": MAX_CALL_RETRIES},
        }
        return frozen_map({"type": "object", "properties": properties, "required": ["input", "schema"]})

    async def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """The extracted data, or the reason why there is none."""
        text, name = valid_text(args["input"], "input"), valid_text(args["schema"], "schema").strip()
        store_as = valid_text(args.get("store_as") or "", "store_as").strip()
        problem = argument_problem(text, name, self.schemas.names)
        # An unusable key is refused before a model is paid for the data.
        refused = self._refusal(store_as, None, context)
        if problem or refused:
            return problem or extraction_error(name, refused or "")
        definition = self.schemas.get(name)
        tries = 1 + retry_count(args.get("max_retries"), definition, self.policy)
        try:
            data = await self._extract(text, name, definition, tries, context.ask)
        except (InvalidInput, ModelError) as error:
            return extraction_error(name, str(error))
        if isinstance(data, Nothing):
            return extraction_error(name, nothing_found_reason(name, data))
        refused = self._refusal(store_as, data, context)
        if refused:
            return extraction_error(name, refused)
        notes = frozen_map({store_as: data} if store_as else {})
        return ToolResult(extraction_text(name, data, store_as), notes)

    def _refusal(self, store_as: str, data: Any, context: ToolContext) -> str | None:
        """The reason why the data cannot be stored under this key, or None."""
        used_keys = occupied_keys(context.metadata, context.earlier, self.notes)
        return refusal(MetadataWrite(store_as, data), used_keys, self.notes) if store_as else None

    async def _extract(
        self, text: str, name: str, definition: SchemaDefinition, tries: int, ask: AskModel
    ) -> Any:
        messages: list[Message] = [system(self._prompt(definition)), user(text)]
        response_format, problem = self._format(name, definition), "the model said nothing"
        for _ in range(tries):
            request = InferenceRequest(tuple(messages), 1, response_format=response_format)
            response = await ask(request, self._model(definition))
            try:
                return definition.read(parse_answer(response.text), self.policy.use_maybe)
            except InvalidInput as error:
                problem = str(error)
            messages += [assistant(response.text), user(ASK_AGAIN.format(problem=problem))]
        raise InvalidInput(problem)

    def _format(self, name: str, definition: SchemaDefinition) -> ResponseFormat | None:
        """The response format for the provider; None for plain text."""
        if self.policy.output_mode == TEXT:
            return None
        schema = frozen_map(definition.answer_schema(self.policy.use_maybe))
        known_to_all = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]
        return ResponseFormat(schema, self.policy.output_mode or JSON_SCHEMA, known_to_all, strict=False)

    def _prompt(self, definition: SchemaDefinition) -> str:
        schema = json_text(frozen_map(definition.answer_schema(self.policy.use_maybe)))
        parts = [self.policy.system_prompt or PROMPT, MAYBE if self.policy.use_maybe else ""]
        parts += [definition.description, definition.prompt, f"Schema: {schema}"]
        parts += [f"Example: {json_text(example)}" for example in definition.examples]
        return "\n\n".join(part for part in parts if part)

    def _model(self, definition: SchemaDefinition) -> ModelChoice:
        """The preset; or a change to it, if the policy or the schema has options."""
        changes: dict[str, Any] = dict(definition.llm_options)
        if self.policy.model:
            changes["model"] = self.policy.model
        if not changes:
            return self.policy.llm_preset
        return {**changes, "preset": self.policy.llm_preset} if self.policy.llm_preset else changes


class UseStructuredOutputs:
    """Lets an agent extract data."""

    name = "structured_output"

    def __init__(
        self,
        schemas: Mapping[str, SchemaDefinition | type] | SchemaRegistry,
        policy: StructuredOutputPolicy | None = None,
    ) -> None:
        self.schemas = schemas if isinstance(schemas, SchemaRegistry) else SchemaRegistry(schemas)
        self.policy = policy or StructuredOutputPolicy()

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tool."""
        return builder.with_tools([ExtractDataTool(SchemaRegistry(self.schemas), self.policy)])
