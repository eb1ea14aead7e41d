"""The texts of the tool that asks a model a single question."""

QUERY_EMPTY = "Error: query is empty"
NO_TEXT = "Error: The model returned no text"


def query_problem(query: str) -> str | None:
    """The error text for an empty query; None if it is not empty."""
    return None if query.strip() else QUERY_EMPTY


def answer_text(response: str) -> str:
    """The model's answer, or the error text if it is blank."""
    return response if response.strip() else NO_TEXT


def call_error_text(error: str) -> str:
    """The error text for a failed model call."""
    return f"Error: The model call failed: {error}"
