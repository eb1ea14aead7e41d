from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.questions import (
    Question,
    UserAnswer,
    UserInputPolicy,
    find_question,
    request_data,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import frozen_map


def check_required(schema: Mapping[str, Any], data: Any) -> str | None:
    """Stand in for a validator: demand a map with all required keys."""
    if not isinstance(data, Mapping):
        return "not an object"
    missing = [key for key in schema.get("required", ()) if key not in data]
    return f"'{missing[0]}' is a required property" if missing else None


PLAIN = Question("How many?")
CHOICE = Question.parse({"prompt": "Colour?", "choices": ["red", " dark blue "]})
FORM = Question.parse({"prompt": "Who?", "schema": {"type": "object", "required": ["name"]}})


def answering(question: Question, text: str = "", data: Any = None) -> Any:
    return question.result(UserAnswer(text, data), check_required)


def refusing(question: Question, text: str = "", data: Any = None) -> str:
    with pytest.raises(InvalidInput) as refused:
        answering(question, text, data)
    return str(refused.value)


@pytest.mark.parametrize("args", [{}, {"prompt": " "}, {"prompt": None}, {"prompt": 5}])
def test_a_question_needs_a_prompt(args: dict[str, Any]) -> None:
    """8.5.1: `prompt is required`."""
    with pytest.raises(InvalidInput, match=r"^prompt is required$"):
        Question.parse(args)


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "string"}, "string", 5, []])
def test_choices_win_over_a_schema(schema: object) -> None:
    """8.5.1: models fill in both; the schema is ignored in any form."""
    args = frozen_map({"prompt": "?", "choices": ["a", "b"], "schema": schema})

    assert Question.parse(args) == Question("?", ("a", "b"))
    assert request_data(args) == {"prompt": "?", "choices": ["a", "b"]}


def test_the_stored_form_is_complete() -> None:
    """8.5.1"""
    for choices in ([], [" "], None):
        args = frozen_map({"prompt": "?", "choices": choices, "schema": {"type": "object"}})
        assert request_data(args) == args
    assert request_data(frozen_map({"question": "?"})) == {"question": "?"}


@pytest.mark.parametrize(
    "args",
    [{"choices": []}, {"choices": None}, {"choices": [" "]}, {"schema": {}}, {"choices": [], "schema": None}],
)
def test_empty_fields_count_as_none(args: dict[str, Any]) -> None:
    """8.5.1: empty choices count as none, and so does an empty schema."""
    assert Question.parse({"prompt": "How many?", **args}) == PLAIN


def test_empty_choices_go_with_a_schema() -> None:
    """8.5.1: empty choices count as none."""
    assert Question.parse({"prompt": "?", "choices": [], "schema": {"type": "object"}}).schema == {
        "type": "object"
    }


@pytest.mark.parametrize("args", [{"choices": "red"}, {"choices": [1]}, {"schema": [1]}, {"schema": "x"}])
def test_arguments_of_another_type_fail(args: dict[str, Any]) -> None:
    """8.5.1: the model learns the expected form."""
    with pytest.raises(InvalidInput):
        Question.parse({"prompt": "?", **args})


def test_a_question_is_stored_with_its_permitted_answers() -> None:
    """8.5.2: the stored question."""
    assert CHOICE.to_dict() == {"prompt": "Colour?", "choices": ["red", "dark blue"], "schema": None}


def test_a_choice_is_answered_by_its_trimmed_text() -> None:
    """8.5.3: its trimmed text must equal one."""
    assert answering(CHOICE, " red\n") == "red"
    assert answering(CHOICE, "dark blue") == "dark blue"


def test_a_form_is_answered_by_data_or_by_json_text() -> None:
    """8.5.3: its `data`, or its text parsed as JSON."""
    assert answering(FORM, data={"name": "Ada"}) == {"name": "Ada"}
    assert answering(FORM, '{"name": "Ada"}') == {"name": "Ada"}
    assert answering(FORM, "Here you are", {"name": "Ada"}) == {"name": "Ada"}


def test_any_text_answers_a_plain_question() -> None:
    """8.5.3: otherwise any non-blank text fits, and is kept as it is."""
    assert answering(PLAIN, " three ") == " three "


@pytest.mark.parametrize("text", ["Red", "", "blue"])
def test_another_choice_is_refused(text: str) -> None:
    """8.5.4: `Answer must be one of: {a, b}`."""
    assert refusing(CHOICE, text) == "Answer must be one of: red, dark blue"


def test_another_form_is_refused() -> None:
    """8.5.4: otherwise any non-blank text fits, and is kept unchanged."""
    assert refusing(FORM, data={}) == "Answer does not match the schema: 'name' is a required property"
    assert refusing(FORM, "[]") == "Answer does not match the schema: not an object"
    assert refusing(FORM, "Ada").startswith("Answer does not match the schema: the answer is not valid JSON")
    assert refusing(FORM).startswith("Answer does not match the schema: the answer is not valid JSON")


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_answer_is_refused(text: str) -> None:
    """8.5.4: `Answer cannot be empty`."""
    assert refusing(PLAIN, text) == "Answer cannot be empty"


@pytest.mark.parametrize(
    ("requests", "named", "answered"),
    [(["a", "b"], None, "a"), (["a", "b"], "b", "b"), (["a"], "x", None), ([], None, None), ([], "a", None)],
)
def test_a_message_answers_the_oldest_question_or_the_one_it_names(
    requests: list[str], named: str | None, answered: str | None
) -> None:
    """8.5.3: the oldest (or that) open question."""
    assert find_question(requests, named) == answered


@pytest.mark.parametrize(
    ("question", "default", "result"),
    [
        (PLAIN, "three", "three"),
        (PLAIN, 3, "3"),
        (PLAIN, " ", None),
        (CHOICE, "red", "red"),
        (CHOICE, "green", None),
        (FORM, {"name": "Ada"}, {"name": "Ada"}),
        (FORM, '{"name":"Ada"}', {"name": "Ada"}),
        (FORM, {}, None),
        (PLAIN, None, None),
    ],
)
def test_after_the_timeout_the_default_answers_if_it_fits(
    question: Question, default: Any, result: Any
) -> None:
    """8.5.5: the default answer is the result; without one, or if it does not fit, there is none."""
    assert UserInputPolicy(60, default).default_result(question, check_required) == result


@pytest.mark.parametrize(("seconds", "text"), [(60, "60"), (0.5, "0.5"), (604_800.0, "604800")])
def test_without_answer_the_call_fails(seconds: float, text: str) -> None:
    """8.5.5: `No answer within {n}s`."""
    assert UserInputPolicy(seconds).no_answer == f"No answer within {text}s"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60"])
def test_a_meaningless_timeout_is_refused(seconds: Any) -> None:
    """8.5.1: the error gives advice."""
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        UserInputPolicy(seconds)


def test_without_a_timeout_the_wait_is_unlimited() -> None:
    """8.5.1: timeout_seconds=None, default_answer=None."""
    assert UserInputPolicy() == UserInputPolicy(timeout_seconds=None, default_answer=None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"prompt": json_values, "choices": json_values, "schema": json_values}
    ),
    st.text(),
    json_values,
)
def test_any_question_and_answer_fit_or_are_refused(args: dict[str, Any], text: str, data: object) -> None:
    """8.5.4: nothing but InvalidInput."""
    try:
        question = Question.parse(args)
        result = question.result(UserAnswer(text, data), check_required)
    except InvalidInput:
        return
    assert not question.choices or result in question.choices
