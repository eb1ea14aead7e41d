"""What can go wrong with a server. Models and operators read the texts, so these hold no header and no env.

AgentError
└── McpError         the server failed, or said what no server says
├── McpTimeout   it did not answer in time (TimeoutError)
└── McpLost      the connection ended; whether the server got the request decides what follows
"""

from everstep.agent_domain.errors import AgentError


class McpError(AgentError):
    """A server cannot be used, or failed; another attempt may find it well."""


class McpTimeout(McpError, TimeoutError):
    """The server did not answer in time."""


class McpLost(McpError):
    """The connection ended before the answer came."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        """Whether the server may have begun with what was asked."""
        super().__init__(message)
