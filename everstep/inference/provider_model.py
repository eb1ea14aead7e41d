"""The common part of all providers' models: one request, one stream of events, one answer.

A driver defines how a request is written (`body`) and how the events of an answer are read (`reader`). Both
work on plain data, so that they can be tested without a connection. This module does the network I/O: it
opens the stream, reads its events with timeouts, and maps failures to the domain's errors. The SDKs are used
for connections, authentication and server-sent events only. Their own retries are off, and events are read
untyped, because typed ones lose fields that the SDK does not know yet.

An answer is complete once its closing event was read. After that only counters may follow, so a connection
that then breaks has no effect.
"""

import asyncio
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, ClassVar, Protocol, cast

import anyio
import httpx2

from everstep.agent_domain.agents.call_limits import CallLimits
from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.errors import RETRYABLE, ModelError, ModelTimeout, ModelUnavailable, WrongApi
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.readable_parts import readable_messages, sent_kinds
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.pricing.prices import call_cost
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.inference import foreign
from everstep.inference.call_gates import CallGate, respond_in_turn
from everstep.inference.context_windows import preset_limits, preset_window
from everstep.inference.failures import ProviderComplaint, causes, failure, retry_after
from everstep.inference.json_reading import Json, count
from everstep.inference.loop_clients import LoopClients
from everstep.inference.presets import Driver, Preset
from everstep.inference.request_parts import with_accepted_names
from everstep.inference.spoken import AnswerText, storable
from everstep.telemetry.model_requests import ModelTarget, observe_request

GRACE_SECONDS = 2.0
"""How long counters may follow the closing event of an answer."""

CONNECT_SECONDS = 10.0

COUNT_SECONDS = 30.0
"""How long a provider may take to count a request."""

_BROKEN_STREAM = (
    httpx2.HTTPError,
    httpx2.StreamError,
    # httpx2 lets these through if a TLS connection is cut.
    ssl.SSLError,
    anyio.EndOfStream,
)
_UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


def utc_now() -> datetime:
    """The machine's clock, the default for `now`."""
    return datetime.now(UTC)


class AnswerReader(Protocol):
    """Assembles an answer from its events."""

    spoken: AnswerText
    is_complete: bool
    """Whether the closing event was read."""
    has_output: bool
    """Whether a part of the answer was read, which the provider charges even if the rest does not come."""

    @property
    def is_counted(self) -> bool:
        """Whether the counters of the whole answer were read."""
        ...

    @property
    def usage(self) -> Usage:
        """The counters so far."""
        ...

    def feed(self, event: Json) -> None:
        """Process an event.

        Raises:
            ModelError: The event reports a failure.
        """
        ...

    def response(self) -> InferenceResponse:
        """The complete answer."""
        ...


class ProviderStream(Protocol):
    """The part of the SDKs' streams that is used here."""

    response: httpx2.Response

    async def __anext__(self) -> Any:
        """The next event."""
        ...

    async def close(self) -> None:
        """Return the connection to the pool, or close it."""
        ...


@dataclass(frozen=True, slots=True)
class SdkErrors:
    """The exceptions of an SDK; those of both SDKs have the same attributes."""

    base: type[Exception]
    status: type[Exception]
    timeout: type[Exception]
    connection: type[Exception]


@dataclass(slots=True)
class _StreamState:
    """The state of one response stream."""

    content_type: str = ""
    events: int = 0
    is_own: bool = False
    """Whether an event of the driver's own API came; unknown events after it belong to later versions."""


class _StatusError(Protocol):
    """An SDK's exception for an HTTP status."""

    response: httpx2.Response
    body: object


class ProviderModel(ABC):
    """A model behind a provider's API."""

    counts_requests = True
    gate: CallGate | None = None
    """The limits of the preset."""
    errors: ClassVar[SdkErrors]
    api: ClassVar[Driver | None] = None
    """The API of the answers, where it is not named like the driver."""
    _clients: LoopClients[Any]

    def __init__(self, preset: Preset, key: str | None, now: Callable[[], datetime] = utc_now) -> None:
        self.preset = preset
        self._prices = preset.prices
        self._key = key
        self._now = now
        self.target = ModelTarget(preset.name, preset.model, preset.driver.value, preset.base_url)

    @property
    def retry_seconds(self) -> float | None:
        """How long the model is retried, from its preset."""
        return self.preset.retry_seconds

    @property
    def window(self) -> ContextWindow | None:
        """The context window: of the preset, or of the table of known models."""
        return preset_window(self.preset)

    @property
    def readable_files(self) -> tuple[str, ...] | None:
        """The kinds of files that the model reads, from its preset."""
        return self.preset.accepts

    @property
    def call_limits(self) -> CallLimits:
        """The prices, and the length of answers."""
        return preset_limits(self.preset)

    async def count_input(self, request: InferenceRequest) -> int | None:
        """Ask the provider for the input tokens of a request; None if its API cannot count.

        Raises:
            ModelError: The provider cannot be reached, or refused the request.
        """
        body = self.body(self.readable(request))
        await self._clients.get()
        with self._network_errors():
            async with asyncio.timeout(min(COUNT_SECONDS, self.preset.timeout_seconds)):
                counted = await self._post_count(body)
        tokens = count(counted, "input_tokens")
        return tokens or None

    async def _post_count(self, body: Json) -> object:
        """Ask the provider to count; by default it has no counter."""
        del body
        return None

    def has_native_output(self, response_format: ResponseFormat) -> bool:
        """Whether the provider keeps answers to the format; a preset may say that its server does not."""
        return self.preset.structured_output == "native" and self.can_enforce(response_format)

    def can_enforce(self, response_format: ResponseFormat) -> bool:
        """Whether the provider accepts the schema of this format."""
        del response_format
        return True

    @abstractmethod
    def body(self, request: InferenceRequest) -> Json:
        """The request in the provider's format."""

    @abstractmethod
    def reader(self) -> AnswerReader:
        """A reader for one answer."""

    @abstractmethod
    async def open(self, body: Json) -> ProviderStream:
        """Send the request and return the stream of events."""

    async def aclose(self) -> None:
        """Close the connections of this event loop; those of others are closed together with their loops."""
        await self._clients.aclose()

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Ask once.

        Args:
            request: The request.
            on_text: Called with each piece of text as it arrives.

        Raises:
            ModelError: The provider cannot be reached, refused the request, or sent an answer that cannot be
                read.
        """

        async def send() -> InferenceResponse:
            return await observe_request(self.target, request, on_text, self._respond)

        return await respond_in_turn(self.gate, self, request, send)

    async def _respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        reader = self.reader()
        try:
            response = await self._answer(request, on_text, reader)
        except ModelError as error:
            error.usage = self._charged_usage(reader)
            raise
        usage = response.usage.with_cost(call_cost(response.usage, self._prices))
        return replace(response, usage=usage, model=self.preset.model)

    def _charged_usage(self, reader: AnswerReader) -> Usage | None:
        """What a call used that failed; None if the provider has charged nothing."""
        try:
            used = reader.usage
        except _UNREADABLE:
            used = Usage()
        if reader.is_counted:
            return used.with_cost(call_cost(used, self._prices))
        return used.with_cost(None) if reader.has_output or used.total else None

    async def _answer(
        self, request: InferenceRequest, on_text: OnText, reader: AnswerReader
    ) -> InferenceResponse:
        source = _StreamState()
        body = self.body(self.readable(request))
        try:
            async with aclosing(self._events(body, reader, source)) as events:
                async for event in events:
                    with self._unreadable_errors():
                        self._require_own_api(event, source)
                        reader.feed(cast("Json", event))
                    _pass_on(reader.spoken, on_text)
        except RETRYABLE as error:
            if not reader.is_complete:
                refused = self._refused_files(error, request)
                if refused is None:
                    raise
                raise refused from error
        except ModelError as error:
            raise self._with_files_named(error, request) from error
        if not source.events:
            raise foreign.no_events(self.preset, source.content_type)
        if not reader.is_complete:
            raise ModelUnavailable(f"{self.preset.model} broke off before the end of its answer")
        with self._unreadable_errors():
            response = _require_valid_calls(reader.response())
        # Text that was not streamed, but is in the closing event.
        _pass_on(reader.spoken, on_text)
        return response

    def readable(self, request: InferenceRequest) -> InferenceRequest:
        """The request with its files as parts that the model reads, or in words."""
        request = replace(request, messages=readable_messages(request.messages, self.preset.accepts))
        return with_accepted_names(request)

    def _with_files_named(self, error: ModelError, request: InferenceRequest) -> ModelError:
        """The refusal, which may be due to files that the model is not known to read."""
        kinds = sent_kinds(request.messages, None) if self.preset.accepts is None else ()
        if not kinds or error.advice or isinstance(error, WrongApi):
            return error
        named = " and ".join(kinds)
        advice = (
            f"The request contains files ({named}); if {self.preset.model} does not read them, list what it "
            f"reads in its preset, such as accepts = []"
        )
        return ModelError(f"{error}. {advice}", advice=advice)

    def _refused_files(self, error: Exception, request: InferenceRequest) -> ModelError | None:
        """The failure as a refusal, where an own server may have failed because of an image or a PDF.

        Local servers answer 500 to a file that their model does not read, again and again. A provider's
        status 500 is an outage, and so is that of a server whose preset says what the model reads.
        """
        if self.preset.base_url is None or not self._is_internal_error(error):
            return None
        named = self._with_files_named(ModelError(str(error)), request)
        return named if named.advice else None

    def _is_internal_error(self, error: Exception) -> bool:
        cause = error.__cause__
        if not isinstance(cause, self.errors.status):
            return False
        return cast("_StatusError", cause).response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR

    def _require_own_api(self, event: object, source: "_StreamState") -> None:
        if source.is_own or not isinstance(event, dict):
            return
        actual = foreign.driver_for(cast("Json", event))
        own = self.api or self.preset.driver
        if actual is not None and actual is not own:
            raise foreign.wrong_api(self.preset, actual)
        source.is_own = actual is own

    async def _events(self, body: Json, reader: AnswerReader, source: "_StreamState") -> AsyncGenerator[Any]:
        # Making a client takes time, which is not the provider's.
        await self._clients.get()
        with self._network_errors():
            async with asyncio.timeout(self.preset.timeout_seconds):
                stream = await self.open(body)
        source.content_type = stream.response.headers.get("content-type", "")
        try:
            while True:
                patience = self.preset.timeout_seconds
                patience = min(GRACE_SECONDS, patience) if reader.is_complete else patience
                with self._network_errors():
                    try:
                        async with asyncio.timeout(patience):
                            event = await anext(cast("AsyncIterator[Any]", stream))
                    except StopAsyncIteration:
                        return
                source.events += 1
                yield event
        finally:
            await stream.close()

    @contextmanager
    def _unreadable_errors(self) -> Generator[None]:
        """An answer of unknown shape is a failure, and a retry may succeed."""
        try:
            yield
        except _UNREADABLE as error:
            raise foreign.unreadable(self.preset, error) from error

    @contextmanager
    def _network_errors(self) -> Generator[None]:
        """Map exceptions of the network and the SDK to the domain's errors."""
        try:
            yield
        except (TimeoutError, self.errors.timeout, httpx2.TimeoutException) as error:
            raise ModelTimeout(f"{self.preset.model} {self._timeout_text(error)}") from error
        except self.errors.status as error:
            raise self._status_error(cast("_StatusError", error)) from error
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise foreign.unreadable(self.preset, error) from error
        except (self.errors.connection, *_BROKEN_STREAM) as error:
            reason = next((str(e) for e in reversed(list(causes(error))) if str(e)), type(error).__name__)
            raise ModelUnavailable(f"{self.preset.model} cannot be reached: {reason}") from error
        except self.errors.base as error:
            raise self.error_for(ProviderComplaint.parse(getattr(error, "body", None), str(error))) from error

    def _timeout_text(self, error: BaseException) -> str:
        if any(isinstance(cause, httpx2.ConnectTimeout) for cause in causes(error)):
            return f"did not accept a connection within {CONNECT_SECONDS:g}s"
        return f"sent nothing for {self.preset.timeout_seconds:g}s"

    def _status_error(self, error: "_StatusError") -> ModelError:
        """The error for an HTTP status, or for an error event in a stream that began with 200."""
        status = error.response.status_code
        wait = retry_after(error.response.headers, self._now)
        refused = status >= HTTPStatus.BAD_REQUEST
        return self.error_for(
            ProviderComplaint.parse(error.body, str(error), status if refused else None, wait)
        )

    def error_for(self, complaint: ProviderComplaint) -> ModelError:
        """The error for a complaint of this provider."""
        return failure(complaint, self.preset, self._key)


def _require_valid_calls(response: InferenceResponse) -> InferenceResponse:
    """Refuse calls whose ids or names cannot be used in a result."""
    for call in response.tool_calls:
        for value in cast("tuple[object, object]", (call.id, call.name)):
            if not isinstance(value, str) or storable(value) != value:
                raise TypeError("a call has an id or a name that is not text")
    return response


def _pass_on(answer_text: AnswerText, on_text: OnText) -> None:
    if added := answer_text.take_new():
        on_text(added)


def timeouts() -> httpx2.Timeout:
    """Only a connect timeout; others are the caller's: httpx counts pings of a stuck provider as progress."""
    return httpx2.Timeout(None, connect=CONNECT_SECONDS)
