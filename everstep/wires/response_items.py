"""What OpenAI's API calls things: the ids of responses and their items, usage, and the text of a request.

The id of a response names its execution and which run of it the response is: an execution that waited for
people has several runs. The id of an item names its response and its place.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import json_text, thaw
from everstep.wires.run_events import RequestView

SERVER_LABEL = "everstep"
"""The server of all calls: they run in workers, as those of a remote MCP server run elsewhere."""

_RESPONSE = re.compile(r"resp_([0-9a-f]{32})(?:_([1-9]\d{0,5}))?")
_ITEM = re.compile(r"(?:msg|mcp|rs)_([0-9a-f]{32})_(\d{1,6})_\d{1,9}")
_REQUEST = re.compile(r"mcpr_([0-9a-f]{32})")

_PIECE = re.compile(r"\s{0,12}\S{0,12}")


def response_id(execution_id: str, segment: int) -> str:
    """The id of the response that is this run of an execution."""
    name = f"resp_{UUID(execution_id).hex}"
    return f"{name}_{segment}" if segment else name


def parse_response_id(text: str) -> tuple[UUID, int]:
    """The execution and the run that a response is.

    Raises:
        InvalidInput: It is the id of no response.
    """
    match = _RESPONSE.fullmatch(text)
    if match is None:
        raise InvalidInput("the id of a response begins with resp_; send one that this server returned")
    return UUID(match[1]), int(match[2] or 0)


def response_of_item(item_id: object) -> str | None:
    """The response that an item belongs to; None if it is none of ours."""
    match = _ITEM.fullmatch(item_id) if isinstance(item_id, str) else None
    return None if match is None else response_id(match[1], int(match[2]))


def item_id(kind: str, execution_id: str, segment: int, index: int) -> str:
    """The id of an item."""
    return f"{kind}_{UUID(execution_id).hex}_{segment}_{index}"


def approval_item_id(request_id: str) -> str:
    """The id of the item that asks for an approval."""
    return f"mcpr_{UUID(request_id).hex}"


def parse_approval_item_id(text: str) -> UUID:
    """The request that an item asks about.

    Raises:
        InvalidInput: It is no such item.
    """
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise InvalidInput(
            "approval_request_id is the id of an mcp_approval_request in the output of a response, and "
            "begins with mcpr_"
        )
    return UUID(match[1])


def text_pieces(text: str, sent: int, *, is_whole: bool) -> Iterator[str]:
    """The next pieces of a text, of which so many characters were sent.

    Where a text is cut depends on its beginning alone, and not on how it arrives: all readers receive the
    same pieces. So the last one is held until its end is known.
    """
    while sent < len(text):
        match = _PIECE.match(text, sent)
        assert match is not None  # noqa: S101 -- it matches every text
        if match.end() == len(text) and not is_whole:
            return
        yield match[0]
        sent = match.end()


def request_text(request: RequestView) -> str:
    """What an open request says to a person who answers with a message."""
    if request.is_budget:
        return request.prompt
    if not request.is_question:
        return f"The call {request.call.name}({json_text(thaw(request.call.args))}) waits for approval."
    lines = [request.prompt, *(f"- {choice}" for choice in request.choices)]
    if request.schema:
        lines.append(f"Answer with JSON that satisfies this schema: {json_text(thaw(request.schema))}")
    return "\n".join(lines)


def response_usage(usage: Mapping[str, int]) -> dict[str, Any] | None:
    """The usage of an execution as the Responses API has it; None if nothing was counted."""
    counts = _counts(usage)
    if counts is None:
        return None
    return {
        "input_tokens": counts[0],
        "input_tokens_details": {"cached_tokens": usage.get("cached", 0), "cache_write_tokens": 0},
        "output_tokens": counts[1],
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning", 0)},
        "total_tokens": counts[2],
    }


def chat_usage(usage: Mapping[str, int]) -> dict[str, Any]:
    """The usage of an execution as chat completions have it."""
    prompt, completion, total = _counts(usage) or (0, 0, 0)
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": usage.get("cached", 0)},
        "completion_tokens": completion,
        "completion_tokens_details": {"reasoning_tokens": usage.get("reasoning", 0)},
        "total_tokens": total,
    }


def _counts(usage: Mapping[str, int]) -> tuple[int, int, int] | None:
    if not usage.get("total"):
        return None
    prompt = usage.get("input", 0) + usage.get("cached", 0)
    return prompt, usage.get("output", 0) + usage.get("reasoning", 0), usage["total"]


def request_summary(request: RequestView) -> dict[str, Any]:
    """An open request, for programs."""
    return {
        "id": request.id,
        "kind": request_kind(request),
        "execution_id": request.execution_id,
        "text": request_text(request),
        "tool": request.call.name,
        "args": thaw(request.call.args),
        "args_digest": request.args_digest or None,
        "choices": list(request.choices),
        "schema": None if request.schema is None else thaw(request.schema),
        "expires_at": request.expires_at,
        "budget": None if request.budget is None else thaw(request.budget),
    }


def request_kind(request: RequestView) -> str:
    """What a request asks people for."""
    if request.is_budget:
        return "budget"
    return "question" if request.is_question else "approval"
