"""The names of a server's tools for models.

A name depends only on the prefix and the tool's own name, and not on other tools. So an approval by name
stays valid when the server offers new tools. Two tools with the same name are refused.
"""

import hashlib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from everstep.capabilities.mcp.errors import McpError

MAX_NAME_CHARACTERS = 64
"""The limit of OpenAI and Anthropic."""
_UNUSABLE = re.compile(r"[^a-zA-Z0-9_-]")


def usable_prefix(name: str) -> str:
    """A prefix with only allowed characters."""
    return _UNUSABLE.sub("_", name)[:32]


def usable_name(prefix: str, tool: str) -> str:
    """The name for models: `{prefix}_{tool}`.

    Characters that are not allowed become `_`, and the end of a long name becomes a hash.
    """
    name = _UNUSABLE.sub("_", f"{prefix}_{tool}" if prefix else tool)
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    digest = hashlib.sha256(tool.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{digest}"


def model_names(prefix: str, tools: Iterable[str]) -> dict[str, str]:
    """The name for models of each tool.

    Raises:
        McpError: Two tools would have the same name.
    """
    owners: dict[str, str] = {}
    for tool in tools:
        name = usable_name(prefix, tool)
        if name in owners and owners[name] != tool:
            raise McpError(
                f"its tools '{owners[name]}' and '{tool}' would both be called '{name}'; "
                "choose one of them with tools=[...]"
            )
        owners[name] = tool
    return {tool: name for name, tool in owners.items()}


def is_chosen(tool: str, patterns: Iterable[str]) -> bool:
    """Whether one of the globs matches the tool's own name."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)
