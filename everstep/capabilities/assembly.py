"""Builds an agent definition from an agent file: capabilities by name, and the selected tools.

Four keys decide. `capabilities` installs the capabilities that it names. A tool that none of them has
installs the capability that it belongs to. `skills` installs the skills capability, and `approval` the
approval capability. `tools`, if present, keeps only the tools that it names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.compaction_policy import CompactionPolicy
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.model_name import require_no_address
from everstep.agent_domain.agents.plan import Profile
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.subagents import INHERIT
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.tools.tools import Tool
from everstep.agent_domain.tools.toolsets import Toolset
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.capabilities.catalogue import AgentLocation, Catalogue, CatalogueEntry, CheckPreset
from everstep.capabilities.subagents import SelectedTools, set_output

SKILLS = "skills"
"""The capability that the key `skills` installs."""
APPROVAL = "approval"
"""The capability that the key `approval` installs; the key's value becomes its option `tools`."""


def assemble_agent(
    spec: AgentSpec, here: AgentLocation, catalogue: Catalogue, resolve: CheckPreset
) -> AgentDefinition:
    """Build an agent definition from its file.

    Raises:
        InvalidInput: A capability, tool, option or preset does not exist; the message lists those that do.
    """
    here = replace(here, resolve=resolve)
    entries = _requested_entries(spec, catalogue)
    builder = _SelectingBuilder.base()
    builder.with_name(spec.name, spec.description).with_system_prompt(spec.system_prompt)
    builder.chosen = None if spec.tools is None else _selected_tools(spec, catalogue)
    for entry, options in entries:
        _install(entry, options, here, builder)
    _require_tools(spec, builder, catalogue)
    _check_approvals(builder)
    _limit(builder, spec)
    set_output(builder, spec)
    _compact(builder, spec, resolve)
    for budget in spec.budget:
        if "degrade_to" in budget:
            require_no_address(budget["degrade_to"], "budget.degrade_to")
            resolve(budget["degrade_to"])
        builder.with_budget(**budget)
    settings = _with_model(builder, spec.model, resolve)
    definition = builder.definition()
    options = {entry.name: values for entry, values in entries}
    descriptor = replace(definition.descriptor, capabilities=tuple(options))
    written = frozen_map({"capabilities": options, "tools": spec.tools, "skills": spec.skills})
    return replace(definition, descriptor=descriptor, model_settings=settings, written=written)


class _SelectingBuilder(DefinitionBuilder):
    """A builder that drops the tools that `tools` does not select."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: frozenset[str] | None = None
        """None selects all tools."""
        self.offered: dict[str, None] = {}
        self.prefixes: list[str] = []
        """Name prefixes of the toolsets. Which tools a toolset has is known only when an execution runs."""
        self.guarded: list[str] = []
        """The tools that have an approval rule."""

    @property
    def selected_names(self) -> list[str]:
        """The names of the added tools that are selected."""
        return [name for name in self.offered if self.chosen is None or name in self.chosen]

    def with_tools(self, tools: Iterable[Tool] | Tool) -> Self:
        """Add the tools that are selected."""
        added = list(tools) if isinstance(tools, Iterable) else [tools]
        self.offered |= dict.fromkeys(tool.name for tool in added)
        chosen = self.chosen
        return super().with_tools([tool for tool in added if chosen is None or tool.name in chosen])

    def with_approval(self, tool: str, *settings: Any, **policy: Any) -> Self:
        """Add an approval rule, and record it for the check at the end: the tool may be added later."""
        self.guarded.append(tool)
        return super().with_approval(tool, *settings, **policy)

    def with_toolset(self, toolset: Toolset) -> Self:
        """Add a toolset, reduced to the selected tools.

        Raises:
            InvalidInput: No selected tool belongs to the toolset.
        """
        prefix = f"{toolset.name}_"
        self.prefixes.append(prefix)
        if self.chosen is None:
            return super().with_toolset(toolset)
        if not any(name.startswith(prefix) for name in self.chosen):
            raise InvalidInput(
                f"'tools' names no tool that begins with '{prefix}'; name one, or leave the server out"
            )
        return super().with_toolset(SelectedTools(toolset, sorted(self.chosen)))


def _requested_entries(
    spec: AgentSpec, catalogue: Catalogue
) -> list[tuple[CatalogueEntry, Mapping[str, Any]]]:
    """The capabilities that the file asks for, by name or by tool, with their options."""
    named: Mapping[str, Any] = frozen_map(spec.capabilities or EMPTY)
    options = {name: named[name] for name in named}
    if spec.skills is not None:
        options.setdefault(SKILLS, EMPTY)
    if spec.approval:
        if APPROVAL in options:
            raise InvalidInput("'approval' is set twice, as a key and as a capability; keep one of them")
        options[APPROVAL] = frozen_map({"tools": spec.approval})
    entries = {name: catalogue.get(name) for name in options}
    for tool in spec.tools or ():
        entry = catalogue.find_by_tool(tool)
        if entry is not None:
            entries.setdefault(entry.name, entry)
    return [(entry, options.get(name, EMPTY)) for name, entry in entries.items()]


def _selected_tools(spec: AgentSpec, catalogue: Catalogue) -> frozenset[str]:
    """The tools in `tools`, and those of the skills capability if the file names skills."""
    for_skills = catalogue.get(SKILLS).tools if spec.skills is not None else ()
    return frozenset([*(spec.tools or ()), *for_skills])


def _install(
    entry: CatalogueEntry, options: Mapping[str, Any], here: AgentLocation, builder: _SelectingBuilder
) -> None:
    entry.install(builder, options, here)
    if builder.chosen is not None and entry.tools and builder.chosen.isdisjoint(entry.tools):
        raise InvalidInput(
            f"'tools' names no tool of the capability '{entry.name}' ({', '.join(entry.tools)}); "
            "name one, or leave the capability out"
        )


def _require_tools(spec: AgentSpec, builder: _SelectingBuilder, catalogue: Catalogue) -> None:
    """Refuse unknown tools here, because a misspelt name would otherwise fail in the middle of a run."""
    for tool in spec.tools or ():
        if tool not in builder.offered and not tool.startswith(tuple(builder.prefixes)):
            raise UnknownName("tool", tool, dict.fromkeys([*builder.offered, *catalogue.tools]))


def _check_approvals(builder: _SelectingBuilder) -> None:
    """Refuse approval rules for tools that the agent lacks: a misspelt name leaves a tool unguarded."""
    for tool in builder.guarded:
        if tool not in builder.selected_names and not tool.startswith(tuple(builder.prefixes)):
            raise UnknownName("tool for 'approval'", tool, builder.selected_names)


def _limit(builder: DefinitionBuilder, spec: AgentSpec) -> None:
    if spec.max_steps is not None:
        builder.with_max_steps(spec.max_steps)
    if spec.max_tokens is not None:
        builder.with_max_tokens(spec.max_tokens)
    if spec.repeated_call_limit is not None:
        builder.with_repeated_call_limit(spec.repeated_call_limit)
    if spec.last_turn_without_tools is not None:
        builder.with_last_turn_without_tools(spec.last_turn_without_tools)
    if spec.timeout_seconds is not None:
        builder.with_timeout(spec.timeout_seconds)
    if spec.retry_seconds is not None:
        builder.with_retry_budget(spec.retry_seconds)
    if spec.profile is not None:
        builder.with_profile(Profile(spec.profile).value)
    if spec.error_policy is not None:
        builder.with_error_policy(ErrorPolicy.named(spec.error_policy))


def _compact(builder: DefinitionBuilder, spec: AgentSpec, resolve: CheckPreset) -> None:
    if spec.compaction is None:
        return
    policy = CompactionPolicy.read(spec.compaction)
    if policy is None:
        builder.with_compaction(False)
        return
    if policy.model is not None:
        require_no_address(policy.model)
        resolve(policy.model)
    builder.with_compaction(at=policy.at, to=policy.to, model=policy.model)


def _with_model(
    builder: DefinitionBuilder, model: str | Mapping[str, Any] | None, resolve: CheckPreset
) -> FrozenDict:
    """Set the model by its name. A model given as a table is returned as the agent's settings."""
    if model is None or model == INHERIT:
        return EMPTY
    require_no_address(model)
    resolve(model)
    if isinstance(model, str):
        builder.with_model(model)
        return EMPTY
    return frozen_map(model)
