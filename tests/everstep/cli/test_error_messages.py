"""Messages for errors that are not bugs."""

import click
import pytest
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.error_messages import error_message, with_parameters


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidInput("the cursor cannot be read"), "the cursor cannot be read"),
        (RPCError("busy", RPCStatusCode.RESOURCE_EXHAUSTED, b""), "is unavailable: busy; try again"),
        (
            RPCError("Workflow Task in failed state.", RPCStatusCode.FAILED_PRECONDITION, b""),
            "workflow cannot continue (Workflow Task in failed state): what was sent is stored",
        ),
        (
            RPCError("moved", RPCStatusCode.FAILED_PRECONDITION, b""),
            "Temporal is unavailable: moved; try again",
        ),
        (RPCError("no entry", RPCStatusCode.UNAUTHENTICATED, b""), "no entry; check TEMPORAL_API_KEY"),
        (RPCError("no entry", RPCStatusCode.PERMISSION_DENIED, b""), "no entry; check TEMPORAL_API_KEY"),
        (
            RPCError("Namespace x is not found.", RPCStatusCode.NOT_FOUND, b""),
            "found; check TEMPORAL_NAMESPACE",
        ),
        (RPCError("missing queue", RPCStatusCode.INVALID_ARGUMENT, b""), "Temporal refuses: missing queue"),
        (OSError(13, "Permission denied", "/data"), "/data: Permission denied"),
        (OSError("all gone"), "unexpected error (OSError): all gone; run again with --traceback"),
        (ValueError("two\nlines"), "(ValueError): two lines; run again with --traceback to see where"),
    ],
)
def test_a_message_is_one_line_that_says_what_to_do(error: Exception, said: str) -> None:
    assert said in error_message(error)
    assert "\n" not in error_message(error)


def test_a_message_names_options_and_arguments_instead_of_the_fields_of_a_body() -> None:
    """15.5.12"""
    parameters: list[click.Parameter] = [
        click.Option(["--every", "interval_seconds"]),
        click.Option(["-m", "--max-running"]),
        click.Option(["--url"]),
        click.Argument(["receiver"]),
    ]
    text = "body.url, body.name: no url; interval_seconds is 0; max_running is -1"
    named = "RECEIVER, body.name: no url; --every is 0; --max-running is -1"
    assert with_parameters(text, parameters) == named


def test_a_message_is_limited_in_length() -> None:
    assert len(error_message(ValueError("x" * 10_000))) < 600
