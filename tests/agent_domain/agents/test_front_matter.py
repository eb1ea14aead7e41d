"""Splitting markdown into front matter and body, and reading lists of names."""

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.front_matter import parse_names, split_front_matter
from everstep.agent_domain.errors import InvalidInput


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: a\n---\nbody\n",
        "---\r\nname: a\r\n---\r\nbody\r\n",
        "\ufeff---\nname: a\n---\nbody\n",
        "---  \nname: a\n---\t\nbody\n",
        "\n \n---\nname: a\n---\nbody\n",
    ],
)
def test_front_matter_is_between_two_fences(text: str) -> None:
    """10.1.2: a byte order mark, Windows line ends, blank lines and trailing spaces are accepted."""
    assert split_front_matter(text) == ("name: a\n", "body\n")


def test_front_matter_may_be_empty_and_may_end_the_text() -> None:
    """10.1.2."""
    assert split_front_matter("---\n---\nbody") == ("", "body")
    assert split_front_matter("---\nname: a\n---") == ("name: a\n", "")


@pytest.mark.parametrize(
    "text", ["", "body", "---", "---\nname: a\n", " ---\na\n---\n", "----\na\n---\n", "a\n---\nb\n---\n"]
)
def test_without_an_opened_and_closed_fence_all_is_body(text: str) -> None:
    """10.1.2."""
    assert split_front_matter(text) == (None, text)


def test_only_the_first_closing_fence_counts() -> None:
    """10.1.2: later rules are part of the prompt, and `---` within a line is no fence."""
    assert split_front_matter("---\na: x --- y\n--- z\n---\none\n---\ntwo") == (
        "a: x --- y\n--- z\n",
        "one\n---\ntwo",
    )


@given(st.text(st.sampled_from("-\n\r \tab:\ufeff\u2028")))
def test_splitting_never_fails_and_loses_nothing_but_the_fences(text: str) -> None:
    """10.1.2."""
    front_matter, body = split_front_matter(text)
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    assert plain.endswith(body)
    assert front_matter is not None or plain == body
    assert (front_matter or "") in plain


@pytest.mark.parametrize(
    "value",
    [["bash", "read"], ("bash", "read"), "bash, read", " bash ,read,, bash", [" bash", "", "read", "bash"]],
)
def test_names_come_as_a_list_or_as_comma_text(value: object) -> None:
    """10.1.2: trimmed, none empty, none twice."""
    assert parse_names(value, "tools") == ("bash", "read")


@pytest.mark.parametrize("value", ["", " , ", []])
def test_no_names_are_no_names(value: object) -> None:
    """10.1.1: an empty list is not None."""
    assert parse_names(value, "tools") == ()


@pytest.mark.parametrize("value", [None, 3, True, {"bash": True}, 1.5, b"bash"])
def test_anything_else_is_no_list_of_names(value: object) -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput, match="'tools' must be a list of names or names between commas, not "):
        parse_names(value, "tools")


@pytest.mark.parametrize("value", [[3], ["bash", None], [["bash"]]])
def test_names_are_text(value: object) -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput, match="each name in 'skills' must be text, not "):
        parse_names(value, "skills")


def test_names_hold_no_characters_that_cannot_be_stored() -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput, match="NUL"):
        parse_names("ba\x00sh", "tools")
