"""Named points at which a crash test can kill the process; inert everywhere else.

A crash test that kills at random proves luck. One that kills here proves the case.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Failpoint(StrEnum):
    """The places where a process can be killed."""

    INFER_BEFORE_MODEL = "infer.before_model"
    INFER_DURING_STREAM = "infer.during_stream"
    INFER_AFTER_RESPONSE = "infer.after_response"
    INFER_BEFORE_REPORT = "infer.before_report"
    TOOL_AFTER_RESERVE = "tool.after_reserve"
    TOOL_AFTER_EFFECT = "tool.after_effect"
    TOOL_BEFORE_REPORT = "tool.before_report"
    PROCESS_BEFORE = "process.before"
    PROCESS_AFTER_RECORD = "process.after_record"
    SPAWN_AFTER_RESERVE = "spawn.after_reserve"
    SPAWN_BEFORE_REPORT = "spawn.before_report"
    REPORT_BEFORE_RECORD = "report.before_record"
    REPORT_BEFORE_REPORT = "report.before_report"
    SETTLE_BEFORE_COMMIT = "settle.before_commit"
    SETTLE_BEFORE_REPORT = "settle.before_report"
    API_AFTER_COMMIT = "api.after_commit"
    API_BEFORE_ANSWER = "api.before_answer"
    LINK_BEFORE_SEND = "link.before_send"


Strike: TypeAlias = Callable[[Failpoint], None]


def inert(_point: Failpoint) -> None:
    """Do nothing, as everywhere outside of crash tests."""
