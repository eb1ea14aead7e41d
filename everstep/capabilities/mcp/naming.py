"""How a server's tools are called here.

A name depends on the prefix and on the tool's own name alone, never on which other tools there are, so that
an approval by name holds whatever else the server begins to offer. Two tools of one name are refused.
"""

import hashlib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from everstep.capabilities.mcp.errors import McpError

MOST_CHARACTERS = 64
"""What OpenAI and Anthropic allow."""
_UNUSABLE = re.compile(r"[^a-zA-Z0-9_-]")


def usable_prefix(name: str) -> str:
    """What names may begin with."""
    return _UNUSABLE.sub("_", name)[:32]


def usable_name(prefix: str, tool: str) -> str:
    """The name for models: `{prefix}_{tool}`, what is not allowed as `_`, what is too long as its hash."""
    name = _UNUSABLE.sub("_", f"{prefix}_{tool}" if prefix else tool)
    if len(name) <= MOST_CHARACTERS:
        return name
    digest = hashlib.sha256(tool.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{name[: MOST_CHARACTERS - 9]}_{digest}"


def names(prefix: str, tools: Iterable[str]) -> dict[str, str]:
    """The name for models of each tool; `McpError` when two tools would have the same."""
    taken: dict[str, str] = {}
    for tool in tools:
        name = usable_name(prefix, tool)
        if name in taken and taken[name] != tool:
            raise McpError(
                f"its tools '{taken[name]}' and '{tool}' would both be called '{name}'; "
                "choose one of them with tools=[...]"
            )
        taken[name] = tool
    return {tool: name for name, tool in taken.items()}


def is_chosen(tool: str, patterns: Iterable[str]) -> bool:
    """Whether one of the globs matches the tool's own name."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)
