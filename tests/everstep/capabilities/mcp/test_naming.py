"""Names of the tools of servers."""

import re

import pytest

from everstep.capabilities.mcp.errors import McpError
from everstep.capabilities.mcp.naming import is_chosen, model_names, usable_name


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("echo", "s_echo"),
        ("get-sum", "s_get-sum"),
        ("admin.list", "s_admin_list"),
        ("über/alles", "s__ber_alles"),
    ],
)
def test_a_name_has_the_characters_that_models_allow(tool: str, name: str) -> None:
    """9.10.2"""
    assert usable_name("s", tool) == name


def test_without_a_prefix_a_tool_keeps_its_name() -> None:
    assert usable_name("", "echo") == "echo"


def test_a_long_name_is_cut_and_stays_unique() -> None:
    one, other = usable_name("s", "x" * 100), usable_name("s", "x" * 101)

    assert one != other
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{64}", name) for name in (one, other))


def test_a_name_does_not_depend_on_other_tools() -> None:
    alone, among = model_names("s", ["a.b"]), model_names("s", ["c", "a.b", "a_c"])

    assert alone["a.b"] == among["a.b"] == "s_a_b"


def test_two_tools_with_the_same_resulting_name_are_refused() -> None:
    with pytest.raises(McpError, match=r"'a\.b' and 'a/b' would both be called 's_a_b'.*tools="):
        model_names("s", ["a.b", "a/b"])


def test_tools_are_chosen_by_globs_over_their_own_names() -> None:
    assert is_chosen("read_file", ["read_*"])
    assert is_chosen("Echo", ["Echo"])
    assert not is_chosen("Echo", ["echo", "read_*"])
