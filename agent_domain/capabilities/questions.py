"""Questions to people, and the validation of answers.

JSON schemas are validated through a port, because the standard library has no validator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast

from everstep.agent_domain.checks import require_finite
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, freeze, frozen_map, json_text, parse_json, valid_text

TOOL = "user_input"

SchemaCheck: TypeAlias = Callable[[Mapping[str, Any], Any], str | None]
"""Validates data against a JSON schema; returns a description of the mismatch, or None."""


@dataclass(frozen=True, slots=True)
class UserAnswer:
    """A person's answer: text, and for a form its `data`."""

    text: str = ""
    data: Any = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", valid_text(self.text, "the answer"))
        object.__setattr__(self, "data", freeze(self.data, "data"))


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt; the answer is one of several choices, a form, or any text."""

    prompt: str
    choices: tuple[str, ...] = ()
    schema: FrozenDict | None = None

    @classmethod
    def parse(cls, args: Mapping[str, Any]) -> "Question":
        """Parse the arguments of user_input.

        Choices win over a schema, because models fill in every available field. Empty choices and an empty
        schema count as missing.

        Raises:
            InvalidInput: An argument is missing or malformed.
        """
        prompt = args.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            _refuse("prompt is required")
        choices = _choices(args.get("choices"))
        return cls(valid_text(prompt, "prompt"), choices, None if choices else _schema(args.get("schema")))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"prompt": self.prompt, "choices": list(self.choices), "schema": self.schema}

    def result(self, answer: UserAnswer, check: SchemaCheck) -> Any:
        """The tool's result for an answer.

        Args:
            answer: The answer.
            check: The JSON schema validator.

        Raises:
            InvalidInput: The answer does not fit; the error gives the reason.
        """
        if self.choices:
            return self._choice(answer.text.strip())
        if self.schema is not None:
            return _form(answer, self.schema, check)
        return answer.text if answer.text.strip() else _refuse("Answer cannot be empty")

    def _choice(self, text: str) -> str:
        return text if text in self.choices else _refuse(f"Answer must be one of: {', '.join(self.choices)}")


def _form(answer: UserAnswer, schema: FrozenDict, check: SchemaCheck) -> Any:
    try:
        data = parse_json(answer.text, "the answer") if answer.data is None else answer.data
        detail = check(schema, data)
    except InvalidInput as error:
        data, detail = None, str(error)
    return data if detail is None else _refuse(f"Answer does not match the schema: {detail}")


def _choices(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        _refuse("choices must be a list of text")
    entries = (valid_text(entry, "a choice").strip() for entry in cast("Iterable[object]", value))
    return tuple(dict.fromkeys(entry for entry in entries if entry))


def _schema(value: object) -> FrozenDict | None:
    return frozen_map(value, "schema") or None if value is not None else None


def _refuse(message: str) -> NoReturn:
    raise InvalidInput(message)


def request_data(args: FrozenDict) -> FrozenDict:
    """The arguments to store with a request, without a schema that is unused because of choices."""
    try:
        is_choice = bool(Question.parse(args).choices)
    except InvalidInput:
        # Not user_input: a custom tool that asks questions may have any arguments.
        return args
    return FrozenDict({key: value for key, value in args.items() if key != "schema" or not is_choice})


@dataclass(frozen=True, slots=True)
class UserInputPolicy:
    """How long to wait for a person (None: indefinitely), and the default answer after that."""

    timeout_seconds: float | None = None
    default_answer: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_answer", freeze(self.default_answer, "default_answer"))
        if self.timeout_seconds is not None:
            require_finite("timeout_seconds", self.timeout_seconds)
            if self.timeout_seconds <= 0:
                _refuse("timeout_seconds must be greater than zero; leave it out to wait as long as it takes")

    def default_result(self, question: Question, check: SchemaCheck) -> Any:
        """The result after the timeout; None if there is no default answer, or if it does not fit."""
        if self.default_answer is None:
            return None
        try:
            return question.result(_as_answer(self.default_answer), check)
        except InvalidInput:
            return None

    @property
    def no_answer(self) -> str:
        """The error message (error type `timeout`) if there is no default result."""
        return f"No answer within {self.timeout_seconds or 0:.15g}s"


def _as_answer(default: object) -> UserAnswer:
    return UserAnswer(default) if isinstance(default, str) else UserAnswer(json_text(default), default)


def find_question(open_requests: Sequence[str], request_id: str | None) -> str | None:
    """The open question that a message answers; None if it answers none.

    Args:
        open_requests: The ids of the open questions, oldest first.
        request_id: The question that the message names; None: the oldest one.
    """
    if request_id is None:
        return open_requests[0] if open_requests else None
    return request_id if request_id in open_requests else None
