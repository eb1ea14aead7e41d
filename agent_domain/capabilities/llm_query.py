"""Asking a model a single question, as a tool: what the caller reads when it does not work."""

QUERY_EMPTY = "Error: query is empty"
NO_TEXT = "Error: The model returned no text"


def query_problem(query: str) -> str | None:
    """Return the error text for a query that asks nothing."""
    return None if query.strip() else QUERY_EMPTY


def answer_text(response: str) -> str:
    """Return the model's answer, or that there is none."""
    return response if response.strip() else NO_TEXT


def call_failed(error: str) -> str:
    """Say why the model did not answer."""
    return f"Error: The model call failed: {error}"
