"""What requests of OpenAI's API say: new messages, files, decisions, and an earlier conversation."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.messages.messages import Message, Messages, Role
from everstep.agent_domain.values import json_text, thaw
from everstep.http_api.message_files import file_at_url
from everstep.http_api.openai_errors import unsupported, unusable
from everstep.http_api.schemas.openai_requests import ChatCompletionRequest, OpenAiRequest, ResponseRequest
from everstep.http_api.threads import GivenAnswer, Threads
from everstep.wires.event_bodies import json_map
from everstep.wires.response_items import parse_approval_item_id, response_of_item

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_INSTRUCTIONS = frozenset({"system", "developer"})
_OUR_ITEMS = frozenset({"mcp_call", "mcp_approval_request", "mcp_list_tools", "reasoning"})
"""Items of earlier responses, which their session has."""


@dataclass(frozen=True, slots=True)
class ConversationInput:
    """The messages of a request."""

    texts: tuple[str, ...] = ()
    """The new messages of the user."""
    files: tuple[UUID | Attachment, ...] = ()
    history: Messages = ()
    """What was said before."""
    decisions: tuple[GivenAnswer, ...] = ()
    """Decisions about calls."""
    previous: str | None = None
    """The response that the history ends with, if it is one of ours."""

    @property
    def text(self) -> str:
        """The new messages as one."""
        return "\n\n".join(filter(None, self.texts))

    def digest(self, *more: Any) -> str:
        """A digest of everything."""
        said = [[str(each.role), each.text] for each in self.history]
        files = [each.sha256 if isinstance(each, Attachment) else str(each) for each in self.files]
        decided = [[str(each.request_id), each.approved, each.reason] for each in self.decisions]
        return digest_of([said, [*self.texts], files, decided, *more])


def digest_of(value: Any) -> str:
    """A digest of JSON."""
    return hashlib.sha256(json_text(thaw(value)).encode()).hexdigest()


def require_supported(body: OpenAiRequest) -> None:
    """Refuse what would change the answer, and what no agent does.

    Raises:
        Refusal: The request has it.
    """
    if body.tools or (isinstance(body, ChatCompletionRequest) and body.functions):
        raise unsupported(
            "tools", "Tools of clients do not run here: agents have their own. Remove `tools`, `functions`"
        )
    if body.tool_choice not in {None, "auto", "none"}:
        raise unsupported("tool_choice", "The agent chooses its tools; remove `tool_choice`")
    if isinstance(body, ChatCompletionRequest):
        _require_chat(body)
    elif isinstance(body, ResponseRequest):
        _require_response(body)


def _require_chat(body: ChatCompletionRequest) -> None:
    if body.n not in {None, 1}:
        raise unsupported("n", f"n is {body.n}: a run of an agent has one answer; send several requests")
    if body.logprobs:
        raise unsupported("logprobs", "Agents return no log probabilities; remove `logprobs`")
    if body.modalities is not None and [*cast("Sequence[Any]", body.modalities)] != ["text"]:
        raise unsupported("modalities", "Agents answer with text; remove `modalities`")


def _require_response(body: ResponseRequest) -> None:
    if body.store is False:
        raise unsupported(
            "store",
            "Conversations are always stored, so that they survive; remove `store`, and delete the "
            "response when it is not needed any more",
        )
    if body.top_logprobs:
        raise unsupported("top_logprobs", "Agents return no log probabilities; remove `top_logprobs`")
    if body.prompt:
        raise unsupported("prompt", "An agent has its own instructions; remove `prompt`")
    if body.previous_response_id and body.conversation:
        raise unusable("conversation", "Send `previous_response_id` or `conversation`, not both")


def output_schema(given: Mapping[str, Any], param: str) -> Mapping[str, Any] | None:
    """The schema of the result that a request demands; None for text.

    Args:
        given: The form of the answer: `{type, schema, name}`.
        param: Its place in the request.
    """
    match given["type"]:
        case "text":
            return None
        case "json_schema" if isinstance(given.get("schema"), Mapping):
            return {
                "type": "json_schema",
                **{each: given[each] for each in ("schema", "name") if each in given},
            }
        case "json_schema":
            raise unusable(param, f"{param} needs a `schema`")
        case other:
            raise unsupported(param, f"{param} has the type {other!r}; use `json_schema`, or `text`")


# Chat completions.


def read_messages(threads: Threads, messages: Sequence[Mapping[str, Any]]) -> ConversationInput:
    """Read the messages of a chat completion: the user's at the end are new."""
    for at, message in enumerate(messages):
        if message.get("role") in {"tool", "function"} or message.get("tool_calls"):
            raise unsupported(
                f"messages.{at}",
                f"messages.{at} is about a call of a client's tool, which agents do not have",
            )
    return _read(threads, messages, "messages")


# Responses.


def read_input(threads: Threads, body: ResponseRequest) -> ConversationInput:
    """Read the input of a response; `instructions` begin its message."""
    given = body.input
    if given is None:
        return ConversationInput()
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    found = _read(threads, items, "input")
    if body.instructions and found.texts:
        first, *others = found.texts
        return _replaced(found, texts=(f"{body.instructions}\n\n{first}", *others))
    return found


def _replaced(found: ConversationInput, *, texts: tuple[str, ...]) -> ConversationInput:
    return ConversationInput(texts, found.files, found.history, found.decisions, found.previous)


@dataclass
class _Reading:
    """Messages in the order of the conversation; an assistant's makes those before it history."""

    threads: Threads
    history: list[Message] = field(default_factory=list[Message])
    texts: list[str] = field(default_factory=list[str])
    files: list[UUID | Attachment] = field(default_factory=list[UUID | Attachment])
    decisions: list[GivenAnswer] = field(default_factory=list[GivenAnswer])
    previous: str | None = None

    def close(self) -> None:
        """What was read so far is known to the agent."""
        self.history += [Message.user(text) for text in self.texts if text]
        self.texts, self.files, self.decisions = [], [], []


def _read(threads: Threads, items: Sequence[Mapping[str, Any]], param: str) -> ConversationInput:
    reading = _Reading(threads)
    for at, item in enumerate(items):
        place = f"{param}.{at}"
        kind = item.get("type", "message")
        if kind == "mcp_approval_response":
            reading.decisions.append(_decision(item, place))
        elif kind in _OUR_ITEMS:
            reading.close()
            reading.previous = response_of_item(item.get("id")) or reading.previous
        elif kind == "message":
            _read_message(reading, item, place)
        else:
            raise unsupported(
                place, f"{place} has the type {kind!r}; send messages and mcp_approval_response"
            )
    return ConversationInput(
        tuple(reading.texts),
        tuple(reading.files),
        tuple(reading.history),
        tuple(reading.decisions),
        reading.previous,
    )


def _read_message(reading: _Reading, message: Mapping[str, Any], place: str) -> None:
    role = message.get("role")
    text, files = _content(reading.threads, message.get("content"), place)
    if role == "assistant":
        reading.close()
        reading.previous = response_of_item(message.get("id")) or reading.previous
        if text:
            reading.history.append(Message(Role.ASSISTANT, text))
    elif role == "user":
        reading.texts.append(text)
        reading.files += files
    elif role in _INSTRUCTIONS:
        # They are the caller's, and so below the instructions of the agent.
        reading.history.append(Message.user(text))
    else:
        raise unusable(place, f"{place} has the role {role!r}; use user, assistant, system or developer")


def _content(threads: Threads, content: Any, place: str) -> tuple[str, list[UUID | Attachment]]:
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list | tuple):
        raise unusable(place, f"the content of {place} is neither text nor a list of parts")
    texts, files = list[str](), list[UUID | Attachment]()
    for at, part in enumerate(cast("Sequence[object]", content)):
        entry = json_map(part)
        kind, text = entry.get("type"), entry.get("text", entry.get("refusal"))
        if kind in _TEXT_PARTS and isinstance(text, str):
            texts.append(text)
        else:
            files.append(_file(threads, entry, f"{place}.content.{at}"))
    return "\n".join(texts), files


def _file(threads: Threads, part: Mapping[str, Any], place: str) -> UUID | Attachment:
    """The file of a part: its content in a data URL, or the path of an uploaded one."""
    match part:
        case {"type": "image_url", "image_url": {"url": str() as url}}:
            name = None
        case {"type": "input_image", "image_url": str() as url}:
            name = None
        case {"type": "file", "file": {"file_data": str() as url, **rest}}:
            name = rest.get("filename")
        case {"type": "input_file", "file_data": str() as url, **rest}:
            name = rest.get("filename")
        case _:
            raise unsupported(
                place,
                f"{place} has the type {part.get('type')!r}; send text, images and files with their data",
            )
    return file_at_url(threads, url, None, name if isinstance(name, str) else None)


def _decision(item: Mapping[str, Any], place: str) -> GivenAnswer:
    given, reason = item.get("approval_request_id"), item.get("reason")
    approved = item.get("approve")
    if not isinstance(given, str) or not isinstance(approved, bool):
        raise unusable(place, f"{place} needs `approval_request_id`, and `approve`: true or false")
    return GivenAnswer(
        parse_approval_item_id(given),
        approved=approved,
        reason=reason if isinstance(reason, str) and reason else None,
    )


_DECISION = re.compile(r"\s*(approve|deny)\s*(?:[:,.!]\s*(.*))?", re.IGNORECASE | re.DOTALL)


def typed_decision(text: str) -> tuple[bool, str | None] | None:
    """A decision about a call that a person has typed, and its reason; None if the text is none."""
    match = _DECISION.fullmatch(text)
    if match is None:
        return None
    reason = (match[2] or "").strip() or None
    is_approved = match[1].lower() == "approve"
    # An approval with a condition is none.
    return None if is_approved and reason else (is_approved, reason)
