"""Arguments and results in a few words."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.summaries import args_summary, cut_args, result_summary

TEXT = st.text(st.sampled_from("aé漢🙂'\"\n ,:"), max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("args", "summary"),
    [
        ({"q": "hi"}, "q: 'hi'"),
        ({}, ""),
        ({"types": ["program"]}, 'types: ["program"]'),
        ({"a": 1, "b": True, "c": None}, "a: 1, b: true, c: null"),
        ({"z": 1, "a": 2, "m": 3, "b": 4}, "z: 1, a: 2, m: 3"),
        ({"x": 0.5, "y": {"k": [1, 2], "t": "s"}}, 'x: 0.5, y: {"k":[1,2],"t":"s"}'),
        ({"q": ""}, "q: ''"),
        ({"q": "it's"}, "q: 'it's'"),
        ({"q": ["ä/ß"]}, 'q: ["ä/ß"]'),
        ({"q": "x" * 28}, f"q: '{'x' * 28}'"),
        ({"q": "x" * 29}, f"q: '{'x' * 26}..."),
        ({"q": "🙂" * 28}, f"q: '{'🙂' * 28}'"),
        ({"q": "🙂" * 29}, f"q: '{'🙂' * 26}..."),
        ({"n": 10**29}, f"n: {10**29}"),
        ({"n": 10**30}, f"n: 1{'0' * 26}..."),
        ({"list": ["x" * 26]}, f'list: ["{"x" * 26}"]'),
        ({"list": ["x" * 27]}, f'list: ["{"x" * 25}...'),
        ({"a_rather_long_name_that_nobody_cuts": 1}, "a_rather_long_name_that_nobody_cuts: 1"),
    ],
)
def test_the_first_three_arguments_are_summarised(args: Mapping[str, Any], summary: str) -> None:
    """7.3.1."""
    assert args_summary(args) == summary


@given(st.dictionaries(st.sampled_from("kväx"), JSON, max_size=4))
def test_no_shown_argument_is_longer_than_thirty_characters(args: dict[str, Any]) -> None:
    """7.3.1: characters, not bytes."""
    each = [args_summary({key: value}) for key, value in args.items()]
    assert args_summary(args) == ", ".join(each[:3])
    for key, shown in zip(args, each, strict=True):
        assert shown.startswith(f"{key}: ")
        assert len(shown) <= len(f"{key}: ") + 30


@given(TEXT)
def test_a_text_is_quoted_whole_or_cut_before_its_closing_quote(text: str) -> None:
    """7.3.1."""
    quoted = f"'{text}'"
    assert args_summary({"q": text}) == "q: " + (quoted if len(text) <= 28 else quoted[:27] + "...")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"q": "x" * 100}, {"q": "x" * 100}),
        ({"q": "x" * 101}, {"q": "x" * 100 + "..."}),
        ({"q": "漢" * 101}, {"q": "漢" * 100 + "..."}),
        ({"list": ["x" * 101], "map": {"k": "x" * 101}}, {"list": ["x" * 101], "map": {"k": "x" * 101}}),
        ({"n": 10**200, "f": False, "z": None}, {"n": 10**200, "f": False, "z": None}),
        ({}, {}),
    ],
)
def test_only_texts_of_the_top_level_are_cut(args: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """7.3.2."""
    assert cut_args(args, 100) == expected


@given(st.dictionaries(TEXT, JSON, max_size=5), st.integers(0, 50))
def test_cutting_changes_only_long_texts(args: dict[str, Any], length: int) -> None:
    """7.3.2: all arguments stay, in their order."""
    shortened = cut_args(args, length)
    assert list(shortened) == list(args)
    for key, value in args.items():
        if isinstance(value, str) and len(value) > length:
            assert shortened[key] == value[:length] + "..."
            assert len(shortened[key]) == length + 3
        else:
            assert shortened[key] == value


@pytest.mark.parametrize(
    ("result", "summary"),
    [
        (None, None),
        ("", ""),
        ("as it is, 'quoted'", "as it is, 'quoted'"),
        (42, "42"),
        (True, "true"),
        ([1, "ä", None], '[1,"ä",null]'),
        ({"b": 1, "a": {"c": []}}, '{"b":1,"a":{"c":[]}}'),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 97 + "..."),
        ("🙂" * 100, "🙂" * 100),
        ("🙂" * 101, "🙂" * 97 + "..."),
        (["x" * 96], f'["{"x" * 96}"]'),
        (["x" * 97], f'["{"x" * 95}...'),
        (date(2026, 1, 16), "2026-01-16"),
    ],
)
def test_a_result_is_summarised_by_its_beginning(result: object, summary: str | None) -> None:
    """7.3.3."""
    assert result_summary(result) == summary


@given(JSON)
def test_no_summary_of_a_result_is_longer_than_a_hundred_characters(result: object) -> None:
    """7.3.3: characters, not bytes; only None has none."""
    summary = result_summary(result)
    assert (summary is None) == (result is None)
    assert summary is None or len(summary) <= 100


@given(TEXT)
def test_a_text_that_is_a_result_is_whole_or_ninety_seven_characters_of_it(text: str) -> None:
    """7.3.3."""
    assert result_summary(text) == (text if len(text) <= 100 else text[:97] + "...")


@pytest.mark.parametrize("args", [{"at": date(2026, 1, 16)}, {1: "one"}, "text"])
def test_invalid_json_is_refused(args: Any) -> None:
    """7.3.1, 7.3.2: arguments are JSON."""
    with pytest.raises(InvalidInput):
        args_summary(args)
    with pytest.raises(InvalidInput):
        cut_args(args, 100)
