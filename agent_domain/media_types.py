"""Media types of files: found in their content, and compared with what the sender claims."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import truncate

BINARY: Final = "application/octet-stream"
"""The type of content that is neither text nor of a known kind."""

PDF: Final = "application/pdf"

IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that models read."""

UPLOAD_TYPES: Final = (
    *IMAGES,
    PDF,
    "text/plain",
    "text/markdown",
    "text/csv",
    "text/tab-separated-values",
    "text/html",
    "text/xml",
    "application/json",
    "application/xml",
    "application/yaml",
)
"""The types that uploads may have by default."""


class FileKind(StrEnum):
    """How models read a file."""

    IMAGE = "image"
    PDF = "pdf"
    TEXT = "text"
    OTHER = "other"
    """No model reads it."""


_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ\x90", "application/x-executable"),
)
_CERTAIN: Final = frozenset({*IMAGES, PDF})
"""Types that are found in the content, so that content of another type is not one of them."""

_UNSAID: Final = frozenset({"", BINARY, "binary/octet-stream", "application/x-www-form-urlencoded"})
"""What programs send that do not know the type."""

_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "application/x-pdf": PDF,
    "text/x-markdown": "text/markdown",
    "application/csv": "text/csv",
    "text/json": "application/json",
    "text/yaml": "application/yaml",
    "text/x-yaml": "application/yaml",
    "application/x-yaml": "application/yaml",
}
_TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml", "application/javascript"}
)
_BY_EXTENSION: Final = {
    "md": "text/markdown",
    "markdown": "text/markdown",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "json": "application/json",
    "html": "text/html",
    "htm": "text/html",
    "svg": "image/svg+xml",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}
_CERTAIN_EXTENSIONS: Final = frozenset({"png", "jpg", "jpeg", "gif", "webp", "pdf"})
EXTENSIONS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    PDF: "pdf",
    "text/markdown": "md",
    "text/csv": "csv",
    "text/html": "html",
    "application/json": "json",
}
"""The extension of the name of a file that was sent without one."""

_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_WHITESPACE: Final = frozenset("\t\n\r\f\v\x1b\x08")


def kind_of(media_type: str) -> FileKind:
    """How models read files of this type."""
    if media_type in IMAGES:
        return FileKind.IMAGE
    if media_type == PDF:
        return FileKind.PDF
    return FileKind.TEXT if is_text_type(media_type) else FileKind.OTHER


def is_text_type(media_type: str) -> bool:
    """Whether files of this type are text."""
    return (
        media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml"))
    )


def decode_text(data: bytes) -> str | None:
    """The text of a file in UTF-8, or None if it is none."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return text if all(char >= " " or char in _WHITESPACE for char in set(text)) else None


def find_media_type(data: bytes, name: str = "") -> str:
    """The type of a file by its content; the name only says which kind of text it is."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    if decode_text(data) is None:
        return BINARY
    return _BY_EXTENSION.get(name.rpartition(".")[2].lower(), "text/plain")


def checked_media_type(data: bytes, claimed: str | None, name: str = "") -> str:
    """The type of a file, which has to agree with its content.

    Args:
        data: The content.
        claimed: The type that the sender names, with or without parameters; None if it names none.
        name: The name of the file.

    Raises:
        InvalidInput: The content is of another type.
    """
    media_type, _, parameters = (claimed or "").partition(";")
    media_type = media_type.strip().lower()
    media_type = _ALIASES.get(media_type, media_type)
    found = find_media_type(data, name)
    if media_type in _UNSAID:
        return _agrees_with_name(found, name)
    if not _is_media_type(media_type):
        raise InvalidInput(f"{truncate(claimed or '', 100)!r} is no media type; send one like image/png")
    if is_text_type(media_type):
        if not is_text_type(found):
            wants_utf8 = "" if found != BINARY else "; save text as UTF-8"
            raise InvalidInput(f"the content of the file is {found} and not {media_type}{wants_utf8}")
        _require_utf8(parameters)
        return media_type
    if media_type != found and (media_type in _CERTAIN or found in _CERTAIN):
        raise InvalidInput(
            f"the content of the file is {found} and not {media_type}; send it with its own type"
        )
    return media_type


def _agrees_with_name(found: str, name: str) -> str:
    """The type, unless the name claims an image or a PDF. An image of another kind is still an image."""
    extension = name.rpartition(".")[2].lower()
    if extension in _CERTAIN_EXTENSIONS and found not in _CERTAIN:
        raise InvalidInput(f"the content of the file is {found}, although its name ends in .{extension}")
    return found


def require_accepted(media_type: str, accepted: Sequence[str]) -> None:
    """Refuse a file of another type than the accepted ones.

    Raises:
        InvalidInput: The message lists the accepted types.
    """
    if media_type not in accepted:
        raise InvalidInput(f"files of the type {media_type} are not accepted; send {', '.join(accepted)}")


def _is_media_type(text: str) -> bool:
    kind, slash, subtype = text.partition("/")
    is_token = all(
        part and part.isascii() and not set(part) & set(' "(),/:;<=>?@[\\]{}') for part in (kind, subtype)
    )
    return bool(slash) and is_token and text.isprintable() and len(text) <= 100  # noqa: PLR2004 -- characters


def _require_utf8(parameters: str) -> None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('"').lower() not in _UTF8:
            raise InvalidInput(f"the charset {truncate(value, 40)!r} is not read; save the file as UTF-8")
