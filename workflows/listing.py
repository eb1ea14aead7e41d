"""How Temporal's lists and pages name an execution: agent, session, and the way to the rest of it."""

from collections.abc import Mapping

from everstep.workflows.contracts import ExecutionInput


def summary_of(start: ExecutionInput) -> str:
    """Return the one line that the Temporal UI shows beside the workflow id."""
    session = f" · session {start.ref.session_id}" if start.ref.session_id else ""
    return f"{start.plan.agent}{session}"


def memo_of(start: ExecutionInput) -> Mapping[str, str]:
    """Return the memo, which lists contain."""
    session, console = start.ref.session_id, console_url(start)
    return {
        "agent": start.plan.agent,
        **({"session": str(session)} if session else {}),
        **({"console": console} if console else {}),
    }


def details_of(start: ExecutionInput) -> str:
    """Return the details that stay the same: where to read what Temporal does not have. In Markdown."""
    console = console_url(start)
    link = f"[Open in the console]({console})\n\n" if console else ""
    return f"{link}Messages, calls and results: `everstep show {start.ref.execution_id}`"


def console_url(start: ExecutionInput) -> str | None:
    """Return the address of the execution's page; None if the installation has no public URL."""
    if not start.public_url:
        return None
    return f"{start.public_url}/console/executions/{start.ref.execution_id}"
