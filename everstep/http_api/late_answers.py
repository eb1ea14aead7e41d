"""Answers of OpenAI's API that are sent as a whole, once an execution has them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from everstep.http_api.openai_errors import NO_RETRY, render_error
from everstep.http_api.problems import Refusal
from everstep.http_api.run_streams import RECONNECT
from everstep.http_api.wire_routes import render_refusal
from everstep.wires.chat_chunks import CANCELLED, INVALID


class AnswerProjection(Protocol):
    """A projection that has the whole answer at its end."""

    @property
    def failure(self) -> tuple[str, str] | None:
        """The message and the code of a stream that ended without an answer."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer was read."""
        ...

    @property
    def answer(self) -> Mapping[str, Any]:
        """The answer."""
        ...


async def late_answer(
    frames: AsyncGenerator[bytes], projection: AnswerProjection, *, is_repeatable: bool
) -> Response:
    """The answer once the stream has ended, or an error.

    Args:
        frames: The stream.
        projection: The projection that it fills.
        is_repeatable: Whether the request has a key. The SDKs repeat a request that fails: without a key,
            that would run the agent once more.
    """
    try:
        await read_to_end(frames, projection, is_repeatable=is_repeatable)
        require_complete(projection, is_repeatable=is_repeatable)
    except Exception as error:  # noqa: BLE001 -- rendered, and logged where it is unexpected
        return render_refusal(render_error, error)
    return JSONResponse(projection.answer)


async def read_to_end(
    frames: AsyncGenerator[bytes], projection: AnswerProjection, *, is_repeatable: bool = True
) -> None:
    """Read a stream that no client watches.

    Raises:
        Refusal: It ended without an answer.
    """
    async with aclosing(frames):
        async for _ in frames:
            continue
    if projection.failure:
        raise _failure(*projection.failure, is_repeatable=is_repeatable)


def require_complete(projection: AnswerProjection, *, is_repeatable: bool) -> None:
    """Refuse an answer of which a part is missing, because the stream was closed."""
    if not projection.is_complete:
        message = "The server stops; the execution continues, and the same request follows it if it has a key"
        raise _failure(message, RECONNECT, is_repeatable=is_repeatable)


def _failure(message: str, code: str, *, is_repeatable: bool) -> Refusal:
    headers = {} if is_repeatable and code == RECONNECT else NO_RETRY
    status = {RECONNECT: 503, CANCELLED: 409, INVALID: 422, "unauthorized": 401}.get(code, 500)
    return Refusal(status, code, "There is no answer", message, headers=headers)
