"""Lines of the log."""

import json
import logging
from uuid import uuid4

import pytest

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.redaction import Redaction
from everstep.runtime.secrets import secrets
from everstep.runtime.settings import Settings
from everstep.telemetry.execution_ends import EndedExecution, record_end
from everstep.telemetry.log_lines import JsonLines, TextLines
from everstep.telemetry.scope import working_for

REF = ExecutionRef(uuid4(), "acme", uuid4())


def a_record(text: str = "it is %s", *arguments: object, **more: object) -> logging.LogRecord:
    return logging.getLogger("everstep.test").makeRecord(
        "everstep.test", logging.WARNING, "file", 1, text, arguments or ("so",), None, extra=more
    )


def test_a_line_of_json_has_level_time_and_the_execution() -> None:
    """18.3.10"""
    with working_for(REF):
        line = json.loads(JsonLines().format(a_record(agent="clerk", user_id=None)))

    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "everstep.test",
        "message": "it is so",
        "execution_id": str(REF.execution_id),
        "session_id": str(REF.session_id),
        "tenant_id": "acme",
        "agent": "clerk",
    }


def test_a_line_of_json_has_the_stack_trace_of_an_exception_and_stays_one_line() -> None:
    record = a_record("two\nlines%s", "")
    error = ValueError("wrong")
    record.exc_info = (ValueError, error, None)

    written = JsonLines().format(record)

    assert "\n" not in written
    assert "ValueError: wrong" in json.loads(written)["exception"]


def test_a_line_of_text_ends_with_the_ids() -> None:
    """18.3.10"""
    assert TextLines().format(a_record()).endswith("WARNING everstep.test: it is so")
    with working_for(REF):
        assert (
            TextLines()
            .format(a_record())
            .endswith(f"it is so execution_id={REF.execution_id} session_id={REF.session_id} tenant_id=acme")
        )
        named = TextLines().format(a_record("execution %s ended", REF.execution_id))
        assert named.count(str(REF.execution_id)) == 1


def test_a_line_break_in_a_value_does_not_begin_another_line() -> None:
    ref = ExecutionRef(uuid4(), "acme\nERROR forged")

    with working_for(ref):
        assert "\n" not in TextLines().format(a_record("by %s", "a\nb"))


def test_the_end_of_an_execution_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """18.3.10"""
    ended = EndedExecution(REF, "clerk", "failed", "error", steps=2, tokens=30, worked_seconds=1.5)

    with caplog.at_level(logging.INFO, "everstep.telemetry"):
        record_end(ended)

    (record,) = caplog.records
    assert record.message == (
        f"execution {REF.execution_id} of clerk is failed: error, 2 steps, 30 tokens, 1.5 s"
    )
    assert json.loads(JsonLines().format(record))["stop_reason"] == "error"


@pytest.mark.parametrize("lines", [JsonLines(), TextLines()])
def test_a_line_has_a_limited_length(lines: logging.Formatter) -> None:
    """18.3.10: texts of tools and of providers have any length."""
    record = a_record("%s", "m" * 1_000_000)
    record.exc_info = (RuntimeError, RuntimeError("e" * 1_000_000), None)
    assert 40_000 < len(lines.format(record)) < 41_000


@pytest.mark.parametrize("lines", [JsonLines, TextLines])
def test_lines_have_no_secrets(lines: type[JsonLines | TextLines]) -> None:
    """18.3.10: neither in messages, nor in stack traces, nor in the other fields."""
    record = a_record("no access to %s", "postgresql://ann:pass-of-ann@db", path="?token=pass-of-ann")
    error = RuntimeError("pass-of-ann, sesame-open, and https://bob:pass-of-bob@host")
    record.exc_info = (RuntimeError, error, None)

    line = lines(Redaction(("sesame-open", "pass-of-ann"))).format(record)

    assert not any(secret in line for secret in ("pass-of-ann", "sesame-open", "pass-of-bob"))
    assert "RuntimeError: [redacted], [redacted], and https://bob:[redacted]@host" in line


def test_addresses_of_settings_have_secrets() -> None:
    """18.3.10: also several in one setting, and the token of a NATS server."""
    environ = {
        "EVERSTEP_NATS_URL": "nats://user:pass-of-nats@a:4222,nats://b:4222",
        "OTHER": "nats://a-token@host",
        "PAGE": "https://ann@host/page",
        "LIST": "mail me@home, https://x:pass-in-list@host",
    }
    assert set(secrets(Settings(database_url="postgresql://u:pass-of-db@db/x"), environ)) == {
        "pass-of-nats",
        "a-token",
        "pass-in-list",
        "pass-of-db",
    }
