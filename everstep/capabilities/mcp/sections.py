"""Servers in everstep.toml. An agent's file only names them, so that it can run nothing.

    [mcp.time]
    command = ["uvx", "mcp-server-time"]

    [mcp.crm]
    url = "https://crm.example/mcp"
    headers_env = { Authorization = "CRM_AUTHORIZATION" }    # the variable holds the whole header
    tools = ["find_*"]

Secrets are in environment variables of the worker; headers are read when a connection is opened.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import InvalidInput
from everstep.capabilities.mcp import UseMCP
from everstep.capabilities.mcp.naming import usable_prefix
from everstep.capabilities.mcp.servers import HttpServer, Server, StdioServer


class McpSection(StrictModel):
    """A server: a program or a URL, and its settings."""

    model_config = ConfigDict(frozen=True)

    command: tuple[str, ...] = ()
    """The program and its arguments."""
    url: str | None = None
    env: tuple[str, ...] = ()
    """Environment variables to pass to the program if they are set, in addition to the usual few."""
    cwd: str | None = None
    headers_env: Mapping[str, str] = Field(default_factory=dict[str, str])
    """The environment variable for each header."""
    tools: tuple[str, ...] | None = None
    """Globs over the server's own names; None for all."""
    timeout_seconds: float = Field(default=60, gt=0)
    connect_seconds: float = Field(default=30, gt=0)
    idle_seconds: float = Field(default=300, gt=0)
    max_result_chars: int = Field(default=50_000, gt=0)

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either 'command' or 'url'")
        if self.url and (self.env or self.cwd):
            raise ValueError("only a 'command' has 'env' and 'cwd'")
        if self.command and self.headers_env:
            raise ValueError("only a 'url' has 'headers_env'")
        return self

    def server(self, name: str) -> Server:
        """The server that the section describes."""
        if self.url:
            return HttpServer(self.url, _headers(name, self.headers_env))
        program, *args = self.command
        env = {each: os.environ[each] for each in self.env if each in os.environ}
        return StdioServer(program, args, env, self.cwd)


def from_section(name: str, section: Mapping[str, Any]) -> UseMCP:
    """The capability for the section `[mcp.NAME]`.

    Raises:
        InvalidInput: The section is wrong; the message contains no values.
    """
    if usable_prefix(name) != name:
        raise InvalidInput(
            f"[mcp.{name}]: the name is the prefix of its tools: at most 32 letters, digits, '_' and '-'"
        )
    try:
        written = McpSection.model_validate(dict(section))
        return UseMCP(
            written.server(name),
            name,
            written.tools,
            timeout_seconds=written.timeout_seconds,
            connect_seconds=written.connect_seconds,
            idle_seconds=written.idle_seconds,
            max_result_chars=written.max_result_chars,
        )
    except ValidationError as error:
        raise InvalidInput(f"[mcp.{name}] in everstep.toml: {faults(error)}") from None
    except InvalidInput as error:
        raise InvalidInput(f"[mcp.{name}] in everstep.toml: {error}") from None


def _headers(name: str, variables: Mapping[str, str]) -> Callable[[str], dict[str, str]]:
    def of(tenant_id: str) -> dict[str, str]:
        del tenant_id
        return {header: _variable(name, variable) for header, variable in variables.items()}

    return of


def _variable(name: str, variable: str) -> str:
    if variable not in os.environ:
        raise InvalidInput(f"the MCP server '{name}' needs the environment variable {variable}; set it")
    return os.environ[variable]
