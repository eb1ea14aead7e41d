"""The capabilities of every installation, as agent files name them; docs/capabilities.md explains each.

A factory's keyword arguments are the options that a file may set. Their defaults are those of the capability.
"""

from collections.abc import Mapping
from typing import Any, Final

from everstep.agent_domain.agents.builder import AgentCapability
from everstep.agent_domain.capabilities.bash import BashPolicy, ExecutionPolicy
from everstep.agent_domain.capabilities.critique import CritiquePolicy
from everstep.agent_domain.capabilities.extraction import StructuredOutputPolicy
from everstep.agent_domain.capabilities.files import MAX_ENTRIES, MAX_RESULTS
from everstep.agent_domain.capabilities.rights import APPROVE
from everstep.agent_domain.capabilities.scratchpad import MetadataPolicy
from everstep.agent_domain.capabilities.skills import Skill
from everstep.agent_domain.capabilities.subagents import SubagentPolicy
from everstep.agent_domain.capabilities.tasks import TodoPolicy
from everstep.agent_domain.errors import InvalidInput, UnknownName, unknown_name_text
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.approval import UseApproval
from everstep.capabilities.bash import UseBash
from everstep.capabilities.catalogue import AgentLocation, CapabilityGroup, Catalogue, CatalogueEntry
from everstep.capabilities.critique import UseSelfCritique
from everstep.capabilities.files import ListDirTool, SearchFilesTool, UseFileTools
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.mcp.sections import from_section
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.react import UseReAct
from everstep.capabilities.skills import SkillLibrary, UseSkills
from everstep.capabilities.structured_output import UseStructuredOutputs
from everstep.capabilities.structured_output.written import schema_definitions
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.tasks import UseTaskPlanning
from everstep.capabilities.user_input import UseUserInput

_OUTPUT: Final = BashPolicy()
_BASH: Final = ExecutionPolicy.for_bash(".")
_TASKS: Final = TodoPolicy()
_NOTES: Final = MetadataPolicy()
_SUBAGENTS: Final = SubagentPolicy()
_CRITIQUE: Final = CritiquePolicy()
_EXTRACTION: Final = StructuredOutputPolicy()


def _bash(  # noqa: PLR0913 -- each is an option
    here: AgentLocation,
    *,
    base_dir: str = ".",
    timeout: float = _BASH.timeout,
    memory_bytes: int = _BASH.memory_bytes,
    disk_bytes: int = _BASH.disk_bytes,
    network: bool | list[str] = False,
    git: bool = _BASH.git,
    readable_paths: list[str] | None = None,
    writable_paths: list[str] | None = None,
    max_output_chars: int = _OUTPUT.max_output_chars,
    head_chars: int = _OUTPUT.head_chars,
    tail_chars: int = _OUTPUT.tail_chars,
) -> AgentCapability:
    policy = ExecutionPolicy.for_bash(here.working_dir / base_dir, timeout)
    policy = policy.with_memory(memory_bytes).with_disk(disk_bytes).with_network(network).with_git(git)
    policy = _with_paths(policy, here, readable_paths, writable_paths)
    return UseBash(policy, output_policy=BashPolicy(max_output_chars, head_chars, tail_chars))


def _files(
    here: AgentLocation,
    *,
    base_dir: str = ".",
    readable_paths: list[str] | None = None,
    writable_paths: list[str] | None = None,
    max_results: int = MAX_RESULTS,
    max_entries: int = MAX_ENTRIES,
) -> AgentCapability:
    base = here.working_dir / base_dir
    policy = _with_paths(ExecutionPolicy.in_dir(base), here, readable_paths, writable_paths)
    return CapabilityGroup(
        UseFileTools(base, policy), SearchFilesTool(base, max_results), ListDirTool(base, max_entries, policy)
    )


def _with_paths(
    policy: ExecutionPolicy, here: AgentLocation, readable: list[str] | None, writable: list[str] | None
) -> ExecutionPolicy:
    """Add paths to the policy; relative ones start in the working directory of the process."""
    policy = policy.with_readable_paths(*(here.working_dir / path for path in readable or ()))
    return policy.with_writable_paths(*(here.working_dir / path for path in writable or ()))


def _tasks(
    here: AgentLocation,
    *,
    max_items: int = _TASKS.max_items,
    max_in_progress: int = _TASKS.max_in_progress,
    render_every_steps: int = _TASKS.render_every_steps,
    reminder_every_steps: int = _TASKS.reminder_every_steps,
) -> AgentCapability:
    del here
    return UseTaskPlanning(TodoPolicy(max_items, max_in_progress, render_every_steps, reminder_every_steps))


def _metadata(
    here: AgentLocation,
    *,
    max_keys: int = _NOTES.max_keys,
    max_value_size_bytes: int = _NOTES.max_value_size_bytes,
) -> AgentCapability:
    del here
    return UseMetadataTools(MetadataPolicy(max_keys, max_value_size_bytes))


class _SelectedSkills(SkillLibrary):
    """A library reduced to the skills that an agent's file names."""

    def __init__(self, library: SkillLibrary, names: tuple[str, ...]) -> None:
        self._library = library
        self._names = names

    @property
    def skills(self) -> Mapping[str, Skill]:
        """The named skills."""
        return {name: skill for name, skill in self._library.skills.items() if name in self._names}

    def require_all(self) -> None:
        """Refuse unknown skills here; otherwise a misspelt name would fail in the middle of a run."""
        for name in self._names:
            if name not in self._library.skills:
                raise UnknownName("skill", name, self._library.skills)


def _skills(here: AgentLocation, *, path: str = "skills") -> AgentCapability:
    library = SkillLibrary(here.folder / path)
    if here.skills is None:
        return UseSkills(library)
    some = _SelectedSkills(library, here.skills)
    some.require_all()
    return UseSkills(some)


def _subagents(
    here: AgentLocation,
    *,
    max_depth: int = _SUBAGENTS.max_depth,
    summary_max_chars: int = _SUBAGENTS.summary_max_chars,
    skills_path: str = "skills",
) -> AgentCapability:
    agents = here.other_agents
    if not agents.count():
        raise InvalidInput(
            "there is no other agent that it could start; write one into its folder, and name that folder"
        )
    library = SkillLibrary(here.folder / skills_path)
    for spec in agents.all():
        _SelectedSkills(library, tuple(spec.skills or ())).require_all()
    return UseSubagents(agents, SubagentPolicy(max_depth, summary_max_chars), library)


def _critique(
    here: AgentLocation,
    *,
    max_iterations: int = _CRITIQUE.max_iterations,
    verbose: bool = _CRITIQUE.verbose,
    llm_preset: str | None = None,
) -> AgentCapability:
    here.require_preset(llm_preset)
    return UseSelfCritique(max_iterations, verbose, llm_preset)


def _structured_output(
    here: AgentLocation,
    *,
    schemas: dict[str, dict[str, Any]],
    max_retries: int = _EXTRACTION.max_retries,
    use_maybe: bool = _EXTRACTION.use_maybe,
    llm_preset: str | None = None,
    output_mode: str | None = None,
    system_prompt: str | None = None,
) -> AgentCapability:
    here.require_preset(llm_preset)
    policy = StructuredOutputPolicy(
        max_retries, use_maybe, llm_preset, output_mode=output_mode, system_prompt=system_prompt
    )
    return UseStructuredOutputs(schema_definitions(schemas), policy)


def _llm_query(here: AgentLocation, *, llm_preset: str | None = None) -> AgentCapability:
    here.require_preset(llm_preset)
    return CapabilityGroup(LlmQueryTool(llm_preset))


def _react(
    here: AgentLocation, *, max_retries: int = 2, final_via_inference: bool = False
) -> AgentCapability:
    del here
    return UseReAct(max_retries, final_via_inference)


def _mcp(here: AgentLocation, *, servers: list[str]) -> AgentCapability:
    if not servers:
        raise InvalidInput("'servers' is empty; name at least one server")
    for name in servers:
        if name not in here.servers:
            problem = unknown_name_text("server", name, here.servers)
            section = "a server is a section [mcp.NAME] of everstep.toml"
            raise InvalidInput(f"{problem}; {section}{did_you_mean(name, here.servers)}")
    return CapabilityGroup(*(from_section(name, here.servers[name]) for name in servers))


def _user_input(
    here: AgentLocation, *, timeout_seconds: float | None = None, default_answer: Any = None
) -> AgentCapability:
    del here
    return UseUserInput(timeout_seconds, default_answer)


def _approval(
    here: AgentLocation,
    *,
    tools: dict[str, Any],
    approver: str | list[str] = APPROVE,
    four_eyes: bool = False,
    expires_after: float | None = None,
) -> AgentCapability:
    del here
    return UseApproval(tools, approver=approver, four_eyes=four_eyes, expires_after=expires_after)


_FILE_TOOLS: Final = ("read_file", "write_file", "edit_file", "search_files", "list_dir")
_METADATA_TOOLS: Final = ("metadata_write", "metadata_read", "metadata_list")
_A_SCHEMA: Final = frozen_map({"schemas": {"day": {"type": "string"}}})
_A_SERVER: Final = frozen_map({"servers": ["time"]})
_AN_APPROVAL: Final = frozen_map({"tools": {}})

STANDARD: Final = Catalogue(
    [
        CatalogueEntry("bash", "Runs commands in a sandbox.", ("bash",), _bash),
        CatalogueEntry("files", "Reads, writes, edits and finds files in a directory.", _FILE_TOOLS, _files),
        CatalogueEntry("tasks", "Plans its work as a list of tasks.", ("todo_write",), _tasks),
        CatalogueEntry("metadata", "Notes down values for its later steps.", _METADATA_TOOLS, _metadata),
        CatalogueEntry("skills", "Loads instructions when it needs them.", ("load_skill",), _skills),
        CatalogueEntry(
            "subagents", "Gives tasks to the other agents of its folder.", ("spawn_subagent",), _subagents
        ),
        CatalogueEntry(
            "critique", "Has a critic read each final answer, which may send it back.", (), _critique
        ),
        CatalogueEntry(
            "structured_output",
            "Extracts data of known schemas from text.",
            ("extract_data",),
            _structured_output,
            _A_SCHEMA,
        ),
        CatalogueEntry("llm_query", "Asks a model a single question.", ("llm_query",), _llm_query),
        CatalogueEntry("react", "Decides in JSON, for models without tool calls.", (), _react),
        CatalogueEntry("mcp", "Uses the tools of MCP servers.", (), _mcp, _A_SERVER),
        CatalogueEntry(
            "user_input", "Asks the user a question and waits for the answer.", ("user_input",), _user_input
        ),
        CatalogueEntry(
            "approval", "Has people decide about calls before they run.", (), _approval, _AN_APPROVAL
        ),
    ]
)
"""The capabilities of every installation."""
