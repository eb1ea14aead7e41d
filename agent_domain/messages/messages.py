"""Messages of a conversation, in the form that providers, snapshots and the store share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias, cast

from everstep.agent_domain.attachments import (
    Attachable,
    Attachment,
    as_attachments,
    content_with,
    is_attachment_part,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    FrozenList,
    freeze,
    frozen_map,
    json_text,
    read_each,
    read_key,
    read_optional,
    require_map,
    thaw,
    valid_text,
)


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"

    @classmethod
    def parse(cls, text: object) -> "Role":
        """The role with that name; an unknown name means the user."""
        return cls(text) if isinstance(text, str) and text in _ROLES else cls.USER


_ROLES = frozenset(Role)

Content: TypeAlias = str | FrozenList
"""Text, or a list of parts such as `{"type": "text", "text": ...}`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: Content = ""
    metadata: FrozenDict = EMPTY
    files: Mapping[str, bytes] = field(default=EMPTY, compare=False, repr=False)
    """The content of attached files by their id, where it was read already; it is never exported."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role.parse(self.role))
        object.__setattr__(self, "content", _content(self.content))
        object.__setattr__(self, "metadata", frozen_map(self.metadata, "message metadata"))

    @classmethod
    def from_string(cls, text: str, role: str = "user") -> "Message":
        """A message of plain text."""
        return cls(Role.parse(role), valid_text(text, "message text"))

    @classmethod
    def user(cls, text: str = "", *, attachments: Iterable[Attachable] = ()) -> "Message":
        """A message of the user, with files.

        Args:
            text: The text; it may be empty if files are attached.
            attachments: Files, such as `pathlib.Path("photo.png")`, or attachments.

        Raises:
            InvalidInput: A file cannot be read or attached.
        """
        attached = as_attachments(attachments)
        content: Any = content_with(valid_text(text, "message text"), attached)
        return cls(Role.USER, content, files=_contents(attached))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Message":
        """Read the exported form; unknown keys are ignored, missing ones are empty."""
        data = frozen_map(data, "message")
        metadata = data.get("metadata")
        content: Any = data.get("content")
        return cls(
            Role.parse(data.get("role")),
            "" if content is None else content,
            frozen_map(data.get("_metadata") or {} if metadata is None else metadata, "message metadata"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The exported form; `content` is always present."""
        exported: dict[str, Any] = {"role": str(self.role), "content": thaw(self.content)}
        return exported | ({"metadata": thaw(self.metadata)} if self.metadata else {})

    @property
    def is_empty(self) -> bool:
        """Whether it has neither content nor metadata; such a message is dropped on export."""
        return not self.content and not self.metadata

    @property
    def is_user(self) -> bool:
        """Whether the user wrote it."""
        return self.role is Role.USER

    @property
    def is_assistant(self) -> bool:
        """Whether the model wrote it."""
        return self.role is Role.ASSISTANT

    @property
    def is_tool(self) -> bool:
        """Whether it is a tool's result."""
        return self.role is Role.TOOL

    @property
    def is_developer(self) -> bool:
        """Whether it is a developer's instruction."""
        return self.role is Role.DEVELOPER

    @property
    def is_system(self) -> bool:
        """Whether it is an instruction: system and developer messages both are."""
        return self.has_role(Role.SYSTEM, Role.DEVELOPER)

    def has_role(self, *roles: str) -> bool:
        """Whether its role is one of these."""
        return self.role in roles

    @property
    def text(self) -> str:
        """All text of the message; parts of other types are left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part["text"] for part in self.content if is_text_part(part))

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The files that it refers to, with their content where that was read."""
        if isinstance(self.content, str):
            return ()
        found = map(Attachment.from_dict, filter(is_attachment_part, self.content))
        return tuple(replace(each, data=self.files.get(str(each.id))) for each in found)

    def with_attachments(self, attachments: Sequence[Attachment]) -> "Message":
        """A copy whose references are replaced by these, in their order."""
        following = iter(attachments)
        parts = [next(following).to_part() if is_attachment_part(part) else part for part in self.content]
        return replace(self, content=cast("Any", parts), files=_contents(attachments))

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        """The tool calls that an assistant message carries."""
        calls = self.metadata.get("tool_calls")
        entries = cast("list[Any]", calls) if isinstance(calls, FrozenList) else []
        return tuple(entry for entry in entries if isinstance(entry, FrozenDict))

    @property
    def answers(self) -> str | None:
        """The id of the tool call that a tool message answers."""
        return self.metadata.get("tool_call_id") if self.is_tool else None


Messages: TypeAlias = tuple[Message, ...]


class MessageList(tuple[Message, ...]):
    """Messages that can be printed; otherwise a tuple."""

    __slots__ = ()

    def to_string(self) -> str:
        """The texts of the messages, one below the other."""
        return "\n".join(message.text for message in self if message.text)


def _contents(attachments: Sequence[Attachment]) -> Mapping[str, bytes]:
    return {str(each.id): each.data for each in attachments if each.data is not None} or EMPTY


def is_text_part(part: object) -> bool:
    """Whether an entry of multipart content is text."""
    return isinstance(part, Mapping) and isinstance(cast("Mapping[str, Any]", part).get("text"), str)


def _content(content: object) -> Content:
    if isinstance(content, str):
        return valid_text(content, "message content")
    parts = freeze(content, "message content")
    if not isinstance(parts, FrozenList):
        raise InvalidInput(f"message content must be text or a list of parts, not {type(content).__name__}")
    return parts


def as_messages(given: "str | Message | Iterable[Message | Mapping[str, Any] | str]") -> Messages:
    """Make messages from a text, a message, or a list of them.

    Raises:
        InvalidInput: It is none of these.
    """
    if isinstance(given, str | Message):
        return (as_message(given),)
    if isinstance(given, Mapping):
        raise InvalidInput("messages must be text, a message or a list of messages; wrap the map in a list")
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without types
        raise InvalidInput(f"messages must be text, a message or a list of them, not {type(given).__name__}")
    return tuple(as_message(each) for each in given)


def as_message(given: "str | Message | Mapping[str, Any]") -> Message:
    """Make a message from a text, a map or a message."""
    if isinstance(given, Message):
        return given
    return Message.from_string(given) if isinstance(given, str) else Message.from_dict(given)


def export(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Convert the messages to plain maps, without empty ones."""
    return [message.to_dict() for message in messages if not message.is_empty]


def system(text: str) -> Message:
    """A system message."""
    return Message.from_string(text, "system")


def user(text: str) -> Message:
    """A message of the user."""
    return Message.from_string(text, "user")


def assistant(text: str, **metadata: Any) -> Message:
    """A message of the model."""
    return Message(Role.ASSISTANT, text, frozen_map(metadata))


def tool_message(text: str, call_id: str, name: str, attachments: Sequence[Attachment] = ()) -> Message:
    """The result of a tool call, as the model reads it; files for the user are in the metadata."""
    files = {"attachments": [each.to_dict() for each in attachments]} if attachments else {}
    return Message(Role.TOOL, text, frozen_map({"tool_call_id": call_id, "tool_name": name, **files}))


def call_entry(call_id: str, name: str, args: Mapping[str, Any] | str) -> dict[str, Any]:
    """A tool call in an assistant message; arguments that were not a JSON object are given as text."""
    arguments = args if isinstance(args, str) else json_text(args)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


PROVIDER_ITEMS = "provider_items"
"""The metadata key of items that the provider requires back unchanged, such as reasoning."""

DEFAULT_SECTION = "messages"


@dataclass(frozen=True, slots=True)
class MessageStore:
    """Conversations by name; the model sees the default section."""

    sections: tuple[tuple[str, tuple[Message, ...]], ...] = ((DEFAULT_SECTION, ()),)
    compaction: Compaction | None = None
    """What of the default section requests contain no longer; it is dropped if those messages change."""

    def section(self, name: str = DEFAULT_SECTION) -> Messages:
        """The messages of a section; empty if there is no such section."""
        return dict(self.sections).get(name, ())

    def with_section(self, name: str, messages: Iterable[Message]) -> "MessageStore":
        """A copy in which the section has these messages."""
        new, compaction = tuple(messages), self.compaction
        if compaction is not None and name == DEFAULT_SECTION:
            compaction = compaction.rebased(self.section(), new)
        return MessageStore(tuple((dict(self.sections) | {name: new}).items()), compaction)

    def with_compaction(self, compaction: Compaction | None) -> "MessageStore":
        """A copy in which requests contain this in place of the beginning of the default section."""
        return replace(self, compaction=compaction)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        sections = [{"name": n, "messages": export(m)} for n, m in self.sections]
        if self.compaction is None:
            return {"sections": sections}
        # The exported messages are without empty ones.
        empty = [at for at, message in enumerate(self.section()) if message.is_empty]
        return {"sections": sections, "compaction": self.compaction.without(empty).to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MessageStore":
        """Read `sections`, or a flat `messages` list as the default section."""
        require_map(data, "the message store")
        flat: dict[str, Any] = {"name": DEFAULT_SECTION, "messages": data.get("messages")}
        store = cls()
        for name, messages in read_each(data, "sections", _read_section) or [_read_section(flat)]:
            store = store.with_section(name, messages)
        return replace(store, compaction=read_optional(data, "compaction", Compaction.from_dict))


def _read_section(entry: Mapping[str, Any]) -> tuple[str, Messages]:
    return read_key(entry, "name", str), read_optional(entry, "messages", as_messages) or ()
