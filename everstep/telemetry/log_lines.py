"""Lines of the log: text, or one JSON object each, with the ids of the execution and of the trace.

Code that works for an execution needs not name it: its ids are on each line that it logs. Exceptions are
logged with their stack traces; texts of conversations are not logged. Secrets are removed from all of it: an
exception of a tool or of a library may quote any.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.values import truncate
from everstep.telemetry.scope import current_execution
from everstep.telemetry.tracing import exporter

NOTICES: Final = "everstep.notices"
"""The logger of what a serving process says to its operator, such as its address."""

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_IDS: Final = ("request_id", "execution_id", "session_id", "tenant_id")
"""Fields of a line that its text form ends with."""
LONGEST_TEXT: Final = 20_000
"""The most characters of a message, and of a stack trace."""
_TEMPORAL: Final = ("temporal_activity", "temporal_workflow")
"""What Temporal's loggers add: workflow ids contain the ids of executions, which are on the line anyway."""


def configure_logs(form: LogFormat, level: LogLevel, redaction: Redaction, *, is_quiet: bool = False) -> None:
    """Write the log of this process to standard error.

    Args:
        form: The format of lines.
        level: The lowest level of Everstep's own lines; others are logged from `warning` on.
        redaction: Removes the secrets of this process from each line.
        is_quiet: Whether to leave out what went well, but for ends of executions.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((JsonLines if form == "json" else TextLines)(redaction))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    lowest = logging.getLevelNamesMapping()[level.upper()]
    own = logging.getLogger("everstep")
    own.setLevel(max(lowest, logging.WARNING) if is_quiet else lowest)
    for name in (NOTICES, "everstep.telemetry.execution_ends"):
        logging.getLogger(name).setLevel(lowest)
    # Those of Python and of libraries would be plain text.
    logging.captureWarnings(form == "json")


def writes_json() -> bool:
    """Return whether the log of this process is lines of JSON: then it writes nothing else."""
    return any(isinstance(each.formatter, JsonLines) for each in logging.getLogger().handlers)


def context_fields() -> dict[str, str]:
    """Return the ids of the execution that the current task works for, and of its trace."""
    ref = current_execution()
    fields = execution_fields(ref) if ref else {}
    to = exporter()
    if to and (traceparent := to.traceparent()):
        _, fields["trace_id"], fields["span_id"], _ = traceparent.split("-")
    return fields


def execution_fields(ref: ExecutionRef) -> dict[str, str]:
    """Return the fields of a line that name an execution."""
    session = {"session_id": str(ref.session_id)} if ref.session_id else {}
    return {"execution_id": str(ref.execution_id), **session, "tenant_id": ref.tenant_id}


class _Lines(logging.Formatter):
    """Lines of a limited length and without secrets, as the texts of tools and of providers have any."""

    def __init__(self, redaction: Redaction | None = None, fmt: str | None = None) -> None:
        super().__init__(fmt)
        self._redaction = redaction or Redaction()

    def shorten(self, text: str) -> str:
        """Return a text without secrets, up to the longest length."""
        return truncate(self._redaction(text), LONGEST_TEXT)

    def formatException(self, ei: Any) -> str:  # noqa: N802 -- logging's name
        """Return the stack trace."""
        return self.shorten(super().formatException(ei))


class JsonLines(_Lines):
    """One JSON object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.shorten(record.getMessage()),
            **context_fields(),
            **{name: self._extra(value) for name, value in _extra_fields(record).items()},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in line.items() if value is not None}, default=str)

    def _extra(self, value: object) -> object:
        return self.shorten(value) if isinstance(value, str) else value


class TextLines(_Lines):
    """A line for people, with the ids at its end."""

    def __init__(self, redaction: Redaction | None = None) -> None:
        super().__init__(redaction, "%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's name
        """Return the line without its stack trace; it stays one line."""
        named = {name: getattr(record, name, None) for name in _IDS}
        ids = [
            f"{name}={value}"
            for name, value in (named | context_fields()).items()
            if value and not (name == "execution_id" and value in record.message)
        ]
        return " ".join([self.shorten(super().formatMessage(record)), *ids]).replace("\n", "\\n")


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _OWN_FIELDS and name not in _TEMPORAL and not name.startswith("_")
    }
