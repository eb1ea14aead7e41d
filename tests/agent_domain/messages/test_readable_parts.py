"""Attached files in a form that models read."""

from typing import Any

import pytest

from everstep import Attachment, Message
from everstep.agent_domain.messages import readable_parts
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.messages.readable_parts import (
    described_messages,
    files_to_load,
    readable_messages,
    sent_kinds,
    with_contents,
)
from everstep.agent_domain.messages.token_estimate import estimate_message
from tests.agent_domain.test_media_types import PDF, PNG

IMAGE = Attachment.from_bytes("a.png", PNG)
DOCUMENT = Attachment.from_bytes("a.pdf", PDF)
NOTES = Attachment.from_bytes('no"tes.md', b"# Notes")
ARCHIVE = Attachment.from_bytes("a.zip", b"PK\x03\x04")


def parts_of(message: Message, accepts: Any = None) -> list[dict[str, Any]]:
    (readable,) = readable_messages((message,), accepts)
    return readable.to_dict()["content"]


def test_files_become_parts_of_chat_completions() -> None:
    """5.6.3"""
    message = Message.user("Look", attachments=[IMAGE, DOCUMENT, NOTES])

    assert parts_of(message) == [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}},
        {
            "type": "file",
            "file": {
                "filename": "a.pdf",
                "file_data": "data:application/pdf;base64,JVBERi0xLjcKJeLjz9MK",
            },
        },
        {"type": "text", "text": '<file name="no\'tes.md">\n# Notes\n</file>'},
    ]
    assert sent_kinds((message,), None) == ("image", "pdf")


def test_what_a_model_does_not_read_is_said_in_words() -> None:
    """5.6.3"""
    message = Message.user("Look", attachments=[IMAGE, DOCUMENT, NOTES, ARCHIVE])

    _, image, document, notes, archive = parts_of(message, ("pdf",))
    assert image["text"] == (
        "[The user attached the image a.png (image/png, 16 bytes), "
        "which you cannot see; say so if the question is about it.]"
    )
    assert document["type"] == "file"
    assert "# Notes" in notes["text"]
    assert archive["text"].startswith(
        "[The user attached the file a.zip (application/zip, 4 bytes), which you"
    )
    assert sent_kinds((message,), ("pdf",)) == ("pdf",)
    assert sent_kinds((message,), ()) == ()


def test_a_file_whose_content_is_gone_is_said_in_words() -> None:
    """5.6.3"""
    message = Message.from_dict(Message.user("Look", attachments=[IMAGE]).to_dict())

    assert parts_of(message)[1]["text"] == (
        "[The user attached the image a.png (image/png, 16 bytes), whose content is not shown here.]"
    )
    (loaded,) = with_contents((message,), {str(IMAGE.id): PNG})
    assert parts_of(loaded)[1]["type"] == "image_url"
    assert with_contents((message,), {}) == (message,)


def test_messages_without_files_stay_as_they_are() -> None:
    messages = (
        user("hello"),
        assistant("hi"),
        Message.from_dict({"content": [{"type": "text", "text": "x"}]}),
    )

    assert readable_messages(messages) is messages
    mixed = (*messages, Message.user("Look", attachments=[IMAGE]))
    assert readable_messages(mixed)[:3] == messages


def test_the_latest_files_are_loaded_if_all_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.6.3"""
    monkeypatch.setattr(readable_parts, "MAX_REQUEST_BYTES", 25)
    messages = tuple(
        Message.from_dict(Message.user(attachments=[each]).to_dict())
        for each in (NOTES, IMAGE, IMAGE, Attachment.from_bytes("b.md", b"latest"))
    )

    assert [each.name for each in files_to_load(messages)] == ["b.md", "a.png"]
    assert files_to_load((user("hello"), Message.user(attachments=[IMAGE]))) == ()


def test_the_tokens_of_files_are_estimated() -> None:
    text = Attachment.from_bytes("a.txt", b"one two three " * 100)
    loaded = estimate_message(Message.user(attachments=[text]))
    unread = estimate_message(Message.from_dict(Message.user(attachments=[text]).to_dict()))

    assert estimate_message(user("one two three " * 100)) < loaded < unread < 1_600
    assert 5_000 <= estimate_message(Message.user(attachments=[IMAGE])) < 5_100
    assert 5_000 <= estimate_message(Message.user(attachments=[DOCUMENT])) < 5_100
    assert estimate_message(Message.user(attachments=[ARCHIVE])) < 200


def test_described_messages_have_only_the_files_that_are_sent() -> None:
    """14.1: each message stays at its place, and other parts are not touched."""
    plain, message = user("Hello"), Message.user("Look", attachments=[IMAGE, DOCUMENT, NOTES, ARCHIVE])

    same = described_messages((plain, message), None)
    _, described = described_messages((plain, message), ("pdf",))

    assert same == (plain, message)
    assert [each.name for each in described.attachments] == ["a.pdf", 'no"tes.md']
    assert parts_of(described, ("pdf",)) == parts_of(message, ("pdf",))
    assert estimate_message(described) < estimate_message(message) - 4_500
