from everstep.agent_domain.capabilities.llm_query import answer_text, call_error_text, query_problem


def test_a_blank_query_is_an_error_text() -> None:
    """9.9.1: `Error: query is empty`."""
    assert query_problem(" \n") == "Error: query is empty"
    assert query_problem("Why?") is None


def test_an_answer_without_text_is_an_error_text() -> None:
    """9.9.1: `Error: The model returned no text`."""
    assert answer_text(" ") == "Error: The model returned no text"
    assert answer_text(" Because. ") == " Because. "


def test_a_failed_call_is_an_error_text() -> None:
    """9.9.1: `Error: The model call failed: {error}`."""
    assert call_error_text("rate limit") == "Error: The model call failed: rate limit"
