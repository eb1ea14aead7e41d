"""Errors of servers. Models and operators read the texts, so these contain no headers and no env.

AgentError
└── McpError         the server failed, or broke the protocol
    ├── McpTimeout   it did not answer in time (TimeoutError)
    └── McpLost      the connection ended; whether the server got the request decides about a retry
"""

from everstep.agent_domain.errors import AgentError


class McpError(AgentError):
    """A server cannot be used, or failed; another attempt may succeed."""


class McpTimeout(McpError, TimeoutError):
    """The server did not answer in time."""


class McpLost(McpError):
    """The connection ended before the answer came."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        """Whether the server may have begun with the request."""
        super().__init__(message)
