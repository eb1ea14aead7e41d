"""Uploads as forms: `multipart/form-data` with one file, as `FormData` and `curl -F` send them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from everstep.http_api.problems import Refusal, invalid_request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM = "multipart/form-data"

FORM_OVERHEAD = 4096
"""How many bytes a form may have around its file."""


@dataclass(frozen=True, slots=True)
class FormFile:
    """The file of a form."""

    name: str
    media_type: str | None
    """What its sender claims."""
    data: bytes


MAX_PARTS = 20
"""Parts of a form that are read, to name those that are too many: parsing each takes some time."""


def is_form(content_type: str | None) -> bool:
    """Whether a body of this type has parts."""
    return (content_type or "").lower().startswith("multipart/")


def form_boundary(content_type: str | None) -> bytes:
    """The text between the parts of a form, which is another one in each attempt; empty without a form."""
    kind, options = parse_options_header(content_type)
    return options.get(b"boundary", b"") if kind == FORM.encode() else b""


def form_file(content_type: str, body: bytes) -> FormFile:
    """Read the file of a form.

    Raises:
        Refusal: The form cannot be read, or has anything but one file.
    """
    boundary = form_boundary(content_type)
    if not boundary:
        raise _refusal(f"The body has the type {content_type.partition(';')[0]}")
    parts = _Parts()
    try:
        parser = MultipartParser(boundary, parts.callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise _refusal("The form cannot be read") from None
    if not parts.is_complete:
        raise _refusal("The form breaks off")
    files = [part for part in parts.found if part.is_file]
    if others := [part for part in parts.found if not part.is_file]:
        raise _refusal(f"The form has the field {others[0].field!r}")
    if len(files) != 1:
        raise _refusal(f"The form has {len(files)} files")
    return files[0].file


def _refusal(problem: str) -> Refusal:
    return invalid_request(
        f"{problem}; send one file alone as {FORM}, or its content as the body with its Content-Type"
    )


@dataclass
class _Part:
    """A part of a form."""

    headers: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    content: bytearray = field(default_factory=bytearray)

    @property
    def options(self) -> dict[bytes, bytes]:
        return parse_options_header(self.headers.get(b"content-disposition"))[1]

    @property
    def is_file(self) -> bool:
        return b"filename" in self.options

    @property
    def field(self) -> str:
        return self.options.get(b"name", b"").decode("utf-8", "replace")

    @property
    def file(self) -> FormFile:
        name = self.options[b"filename"].decode("utf-8", "replace")
        claimed = self.headers.get(b"content-type")
        return FormFile(name, claimed.decode("latin-1") if claimed else None, bytes(self.content))


class _Parts:
    """Collects the parts of a form."""

    def __init__(self) -> None:
        self.found: list[_Part] = []
        self.is_complete = False
        self._name, self._value = bytearray(), bytearray()
        self.callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin_part,
            "on_part_data": self._add_data,
            "on_header_field": self._add_to_name,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        if len(self.found) == MAX_PARTS:
            raise _refusal(f"The form has more than {MAX_PARTS} parts")
        self.found.append(_Part())

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self.found[-1].content += data[start:end]

    def _add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self.found[-1].headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end(self) -> None:
        self.is_complete = True
