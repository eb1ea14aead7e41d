"""A model that answers from a script: for demos, and for tests that kill their worker.

    scenarios:                               # a file for `scenario` in a preset
    - when: weather                        # answers user messages that contain this
      turns:
      - text: Let me look that up.
        calls: [{name: weather, args: {city: Paris}}]
      - text: It is sunny in Paris.
        pace: {characters: 4, seconds: 0.05}
    - turns:                               # answers everything else
      - error: {type: rate_limit, retry_after: 2, times: 1}
        text: I know only about the weather.

A model has no memory, and neither has this one. The next turn follows from the request: it is the number of
assistant messages since the user message that the scenario answers. So another process continues where a
crashed one stopped. After the last turn, the last one repeats. Only the errors raised so far are counted
here; a new process raises them as often again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import yaml
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from everstep.agent_domain.agents.call_limits import CallLimits
from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import (
    InvalidInput,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
)
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.pricing.prices import PriceList
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.inference.call_gates import CallGate, respond_in_turn
from everstep.inference.json_reading import record
from everstep.telemetry.model_requests import ModelTarget, observe_request

Sleep: TypeAlias = Callable[[float], Awaitable[object]]


class _Written(StrictModel):
    """A part of a script, which people write."""

    model_config = ConfigDict(frozen=True)


class ScriptedCall(_Written):
    """A tool call."""

    name: str
    args: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    id: str = ""
    arguments: str | None = None
    """The text of the arguments, to make them something else than a JSON object."""

    @field_validator("args")
    @classmethod
    def _json(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return frozen_map(args, "the arguments of a scripted call")

    def call(self) -> ToolCall:
        """The call as a model makes it."""
        if self.arguments is not None:
            return ToolCall.from_text(self.id, self.name, self.arguments)
        return ToolCall(self.id, self.name, FrozenDict(self.args))


class Pace(_Written):
    """How fast the text comes: how many seconds before each piece of how many characters."""

    seconds: float = Field(default=0, ge=0)
    characters: int | None = Field(default=None, ge=1)
    """None sends all of it at once."""


class ScriptedError(_Written):
    """How the turn fails, and how often before it succeeds."""

    type: Literal["rate_limit", "timeout", "unavailable", "refused"]
    message: str = "As the script says"
    retry_after: float | None = Field(default=None, ge=0)
    times: int | None = Field(default=None, ge=1)
    """None fails always."""
    after: int = Field(default=0, ge=0)
    """How many characters are sent before the failure."""

    def exception(self, usage: Usage | None = None) -> ModelError:
        """The exception to raise, with what the call used."""
        error = self._exception()
        error.usage = usage
        return error

    def _exception(self) -> ModelError:
        match self.type:
            case "rate_limit":
                return RateLimited(self.message, self.retry_after)
            case "unavailable":
                return ModelUnavailable(self.message, self.retry_after)
            case "timeout":
                return ModelTimeout(self.message)
            case "refused":
                return ModelError(self.message)


class ScriptedTurn(_Written):
    """One answer."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    """None means `tool_calls` with calls and `stop` without."""
    usage: Usage = Usage()
    pace: Pace = Pace()
    error: ScriptedError | None = None

    def response(self) -> InferenceResponse:
        """The complete answer."""
        return InferenceResponse(
            self.text,
            tuple(call.call() for call in self.calls),
            self.finish_reason or ("tool_calls" if self.calls else "stop"),
            self.usage,
        )

    def pieces(self) -> Iterator[str]:
        """The text in the pieces in which it is sent; without text there is one empty piece."""
        size = self.pace.characters or len(self.text) or 1
        for start in range(0, len(self.text) or 1, size):
            yield self.text[start : start + size]


class Scenario(_Written):
    """Answers to a user message."""

    when: str | None = None
    """Text in a user message that this answers, ignoring case; None answers messages that no other scenario
    does.
    """
    turns: tuple[ScriptedTurn, ...]

    @field_validator("turns")
    @classmethod
    def _some(cls, turns: tuple[ScriptedTurn, ...]) -> tuple[ScriptedTurn, ...]:
        if not turns:
            raise ValueError("a scenario needs at least one turn")
        return turns

    def answers(self, message: Message) -> bool:
        """Whether this scenario answers the message."""
        return self.when is not None and self.when.casefold() in message.text.casefold()


class Script(_Written):
    """All scenarios of a scripted model."""

    scenarios: tuple[Scenario, ...]

    @field_validator("scenarios")
    @classmethod
    def _some(cls, scenarios: tuple[Scenario, ...]) -> tuple[Scenario, ...]:
        if not scenarios:
            raise ValueError("a script needs at least one scenario")
        return scenarios

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, given: Any) -> Any:
        """A script with one scenario may leave the list out."""
        return {"scenarios": [given]} if "turns" in record(given) else given

    @classmethod
    def of(cls, *turns: "ScriptedTurn | str") -> Self:
        """A script of these answers in order; a text is an answer."""
        written = tuple(ScriptedTurn(text=turn) if isinstance(turn, str) else turn for turn in turns)
        return cls(scenarios=(Scenario(turns=written),))

    @classmethod
    def from_yaml(cls, text: str, name: str = "the scenario") -> Self:
        """Read a script.

        Raises:
            InvalidInput: The YAML or the script is invalid.
        """
        try:
            return cls.model_validate(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise InvalidInput(f"{name} is not valid YAML: {error}") from None
        except ValidationError as error:
            raise InvalidInput(f"{name} is not a valid script: {faults(error)}") from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file.

        Raises:
            InvalidInput: The file cannot be read, or is invalid.
        """
        try:
            return cls.from_yaml(Path(path).read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise InvalidInput(f"the scenario {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidInput(f"the scenario {path} cannot be read: save it as UTF-8") from None

    def turn(self, conversation: Messages) -> tuple[tuple[int, int], ScriptedTurn]:
        """The next turn in a conversation, and its place in the script."""
        number, start = self._scenario(conversation)
        turns = self.scenarios[number].turns
        answers = sum(message.is_assistant for message in conversation[start:])
        index = min(answers, len(turns) - 1)
        return (number, index), turns[index]

    def _scenario(self, conversation: Messages) -> tuple[int, int]:
        """The scenario that answers the latest possible user message, and the index of that message."""
        user_messages = [index for index, message in enumerate(conversation) if message.is_user]
        for index in reversed(user_messages):
            for number, scenario in enumerate(self.scenarios):
                if scenario.answers(conversation[index]):
                    return number, index
        for number, scenario in enumerate(self.scenarios):
            if scenario.when is None:
                return number, user_messages[0] if user_messages else 0
        raise ModelError("The script has no scenario for this conversation; add one without 'when'")


class ScenarioModel:
    """Answers from a script."""

    is_scripted = True
    counts_requests = True
    gate: CallGate | None = None
    """The limits of the preset."""

    def __init__(
        self,
        script: Script,
        sleep: Sleep = asyncio.sleep,
        window: ContextWindow | None = None,
        limits: CallLimits | None = None,
        *,
        prices: PriceList | None = None,
        name: str = "",
        preset: str = "scripted",
    ) -> None:
        self.target = ModelTarget(preset, name)
        self.script = script
        self.call_limits = limits or CallLimits()
        self.window = window
        self.prices = prices
        self.name = name
        self._sleep = sleep
        self._raised: Counter[int] = Counter()

    def has_native_output(self, response_format: ResponseFormat) -> bool:
        """A script writes results as answers."""
        del response_format
        return True

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Send the next turn of the conversation."""

        async def send() -> InferenceResponse:
            return await observe_request(self.target, request, on_text, self._respond)

        return await respond_in_turn(self.gate, self, request, send)

    async def _respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        # Examples among the cached messages are not part of the conversation.
        conversation = request.messages[request.cached_messages :]
        place, turn = self.script.turn(conversation)
        error = turn.error if self._fails(hash((place, conversation)), turn.error) else None
        await self._send_text(turn, on_text, error.after if error else len(turn.text))
        if error:
            # A call that broke off after a part of its answer is charged.
            raise error.exception(self._priced(turn.usage) if error.after and turn.usage.total else None)
        response = turn.response()
        return replace(response, usage=self._priced(response.usage), model=self.name)

    def _priced(self, usage: Usage) -> Usage:
        return usage if self.prices is None else usage.with_cost(self.prices.cost(usage))

    def _fails(self, occasion: int, error: ScriptedError | None) -> bool:
        if error is None:
            return False
        self._raised[occasion] += 1
        return error.times is None or self._raised[occasion] <= error.times

    async def _send_text(self, turn: ScriptedTurn, on_text: OnText, limit: int) -> None:
        for chunk in turn.pieces():
            if turn.pace.seconds:
                await self._sleep(turn.pace.seconds)
            visible, limit = chunk[:limit], limit - len(chunk)
            if visible:
                on_text(visible)
            if limit < 0:
                return
