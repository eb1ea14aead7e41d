"""Media types, found in content and compared with claims."""

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.media_types import (
    UPLOAD_TYPES,
    checked_media_type,
    decode_text,
    find_media_type,
    kind_of,
    require_accepted,
)

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF"
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 "
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
HTML = b"<!doctype html><script>alert(1)</script>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>'


@pytest.mark.parametrize(
    ("data", "name", "found"),
    [
        (PNG, "", "image/png"),
        (JPEG, "a.png", "image/jpeg"),
        (b"GIF89a\x01", "", "image/gif"),
        (b"GIF87a\x01", "", "image/gif"),
        (WEBP, "", "image/webp"),
        (PDF, "", "application/pdf"),
        (b"PK\x03\x04rest", "report.docx", "application/zip"),
        (b"hello", "", "text/plain"),
        (b"# Title", "notes.MD", "text/markdown"),
        (b"a;b", "a.b.csv", "text/csv"),
        (b"\xef\xbb\xbfhello", "", "text/plain"),
        ("Grüße 🎉\n\tx".encode(), "", "text/plain"),
        (b"caf\xe9", "a.txt", "application/octet-stream"),
        (b"a\x00b", "a.txt", "application/octet-stream"),
    ],
)
def test_the_content_says_the_type(data: bytes, name: str, found: str) -> None:
    """5.6.2"""
    assert find_media_type(data, name) == found


@pytest.mark.parametrize(
    ("data", "claimed", "name", "checked"),
    [
        (PNG, "image/png", "", "image/png"),
        (PNG, None, "", "image/png"),
        (PNG, "application/octet-stream", "", "image/png"),
        (JPEG, "image/jpg", "", "image/jpeg"),
        (PDF, "application/x-www-form-urlencoded", "", "application/pdf"),
        (b"a,b", "text/csv; charset=UTF-8", "", "text/csv"),
        (b"{}", "text/json", "", "application/json"),
        (b"{}", "Application/JSON", "", "application/json"),
        (SVG, "image/svg+xml", "", "image/svg+xml"),
        (b"PK\x03\x04", "application/vnd.ms-excel", "", "application/vnd.ms-excel"),
    ],
)
def test_a_claim_that_agrees_is_kept(data: bytes, claimed: str | None, name: str, checked: str) -> None:
    """5.6.2"""
    assert checked_media_type(data, claimed, name) == checked


@pytest.mark.parametrize(
    ("data", "claimed", "words"),
    [
        (HTML, "image/png", "text/plain and not image/png"),
        (JPEG, "image/png", "image/jpeg and not image/png"),
        (PNG, "text/plain", "image/png and not text/plain"),
        (PDF, "application/zip", "application/pdf and not application/zip"),
        (b"caf\xe9", "text/plain", "save text as UTF-8"),
        (b"hello", "text/plain; charset=latin-1", "'latin-1' is not read; save the file as UTF-8"),
        (b"hello", "nonsense", "'nonsense' is no media type"),
        (b"hello", "text/pl ain", "is no media type"),
        (b"hello", f"text/{'x' * 200}", "is no media type"),
    ],
)
def test_a_claim_that_disagrees_is_refused(data: bytes, claimed: str, words: str) -> None:
    """5.6.2"""
    with pytest.raises(InvalidInput, match=words):
        checked_media_type(data, claimed)


def test_a_name_that_disagrees_is_refused() -> None:
    """5.6.2"""
    with pytest.raises(InvalidInput, match=r"is text/plain, although its name ends in \.png"):
        checked_media_type(b"hello", None, "photo.PNG")
    assert checked_media_type(JPEG, None, "photo.png") == "image/jpeg"


def test_a_type_that_is_not_accepted_is_refused_with_those_that_are() -> None:
    """5.6.2"""
    require_accepted("image/png", UPLOAD_TYPES)
    with pytest.raises(InvalidInput, match="application/zip are not accepted; send image/png, image/jpeg"):
        require_accepted("application/zip", UPLOAD_TYPES)
    assert "image/svg+xml" not in UPLOAD_TYPES


def test_models_read_images_pdf_and_text() -> None:
    assert [kind_of(each) for each in ("image/webp", "application/pdf", "text/csv", "application/json")] == [
        "image",
        "pdf",
        "text",
        "text",
    ]
    assert kind_of("image/svg+xml") == "text"
    assert kind_of("application/zip") == "other"
    assert decode_text(b"\xef\xbb\xbfhello") == "hello"
    assert decode_text(b"\xff") is None
