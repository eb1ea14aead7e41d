"""Attached files, as values."""

from pathlib import Path
from uuid import UUID

import pytest

from everstep import Attachment, Message
from everstep.agent_domain.attachments import AttachmentLimits, as_attachments, file_name, size_text
from everstep.agent_domain.errors import InvalidInput
from tests.agent_domain.test_media_types import PNG


def test_a_message_has_references_and_keeps_the_content_apart() -> None:
    """5.6.1"""
    message = Message.user("What is it?", attachments=[Attachment.from_bytes("a.png", PNG)])

    assert message.text == "What is it?"
    exported = message.to_dict()
    assert exported["content"][1] == {
        "type": "attachment",
        "id": str(message.attachments[0].id),
        "name": "a.png",
        "media_type": "image/png",
        "size": len(PNG),
        "sha256": message.attachments[0].sha256,
    }
    assert "metadata" not in exported
    assert message.attachments[0].data == PNG
    read = Message.from_dict(exported)
    assert read == message
    assert read.attachments == message.attachments
    assert read.attachments[0].data is None


def test_a_message_may_have_files_only() -> None:
    message = Message.user(attachments=[Attachment.from_bytes("a.txt", b"hello")])

    assert [part["type"] for part in message.to_dict()["content"]] == ["attachment"]
    assert Message.user("hello").content == "hello"
    assert Message.user("hello").attachments == ()


def test_files_are_read_from_paths(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Notes")

    (attachment,) = Message.user(attachments=[path]).attachments

    assert str(attachment) == "notes.md (text/markdown, 7 bytes)"
    assert attachment.id == Attachment.from_bytes("notes.md", b"# Notes").id


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("photo.png", r"'photo.png' cannot be attached; pass pathlib.Path\('photo.png'\)"),
        (b"bytes", "cannot be attached"),
        (Path("/nowhere/photo.png"), "'/nowhere/photo.png' cannot be read: No such file or directory"),
        (Path("/tmp"), "cannot be read: Is a directory"),  # noqa: S108 -- only a folder
    ],
)
def test_what_is_no_file_is_refused(given: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        as_attachments([given])  # pyright: ignore[reportArgumentType] -- callers without types


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../a.png", "is no file name; send a name without a path"),
        ("a/b", "is no file name"),
        ("C:\\a.png", "is no file name"),
        ("..", "is no file name"),
        ("  ", "is no file name"),
        ("a\nb", "has control characters"),
        ("a\x1b[0m", "has control characters"),
        ("gnp.\u202eexe", "has control characters"),
        ("x" * 256, "has 256 characters; send at most 255"),
    ],
)
def test_a_name_that_could_mislead_is_refused(name: str, words: str) -> None:
    """5.6.2"""
    with pytest.raises(InvalidInput, match=words):
        file_name(name)


def test_a_file_without_a_name_gets_one() -> None:
    assert file_name(None, "image/jpeg") == "file.jpg"
    assert file_name("", "application/zip") == "file"
    assert file_name(" Grüße 🎉.txt ") == "Grüße 🎉.txt"


def test_empty_files_and_texts_in_place_of_bytes_are_refused() -> None:
    """5.6.2"""
    with pytest.raises(InvalidInput, match=r"the file 'a\.txt' is empty"):
        Attachment.from_bytes("a.txt", b"")
    with pytest.raises(InvalidInput, match="of type str; pass bytes"):
        Attachment.from_bytes("a.txt", "text")  # pyright: ignore[reportArgumentType]
    chosen = UUID(int=1)
    assert Attachment.from_bytes("a.txt", bytearray(b"x"), new_id=chosen).id == chosen


def test_limits_are_said_in_one_sentence() -> None:
    """5.6.2"""
    limits = AttachmentLimits(max_bytes=1_000, max_message_bytes=1_500, max_count=2)
    files = [Attachment.from_bytes(f"{n}.txt", b"x" * 800) for n in range(2)]

    limits.require_size("a", 1_000)
    limits.require_count(2)
    with pytest.raises(InvalidInput, match="'a' has 1 KB; a file has at most 1 KB"):
        limits.require_size("a", 1_001)
    with pytest.raises(InvalidInput, match="at most 2 files, not 3"):
        limits.require_count(3)
    with pytest.raises(InvalidInput, match=r"1.6 KB together; send at most 1.5 KB"):
        limits.require_total(files)
    assert [size_text(size) for size in (1, 999, 2_500_000)] == ["1 byte", "999 bytes", "2.5 MB"]
