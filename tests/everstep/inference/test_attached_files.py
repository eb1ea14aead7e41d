"""Attached files in the requests of each driver, sent by the real SDKs to a local server."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest

from everstep import Attachment, Message
from everstep.agent_domain.errors import RETRYABLE, InvalidInput, ModelError, ModelUnavailable
from everstep.inference.models import Models
from everstep.inference.presets import Preset, Presets
from tests.agent_domain.test_media_types import PDF, PNG
from tests.everstep.inference.asking import ask
from tests.everstep.inference.dialects import DIALECTS, Answer
from tests.everstep.inference.wire_server import Reply, WireServer, wire_server

PNG_URL = f"data:image/png;base64,{b64encode(PNG).decode()}"
PDF_URL = f"data:application/pdf;base64,{b64encode(PDF).decode()}"
NOTES = '<file name="notes.md">\n# Notes\n</file>'

SENT: Mapping[str, Any] = {
    "openai": [
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL},
        {"type": "input_text", "text": NOTES},
    ],
    "openai-chat": [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": PNG_URL}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}},
        {"type": "text", "text": NOTES},
    ],
    "anthropic": [
        {"type": "text", "text": "Look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_URL[22:]}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF_URL[28:]},
            "title": "a.pdf",
        },
        {"type": "text", "text": NOTES},
    ],
}
MESSAGE = Message.user(
    "Look",
    attachments=[
        Attachment.from_bytes("a.png", PNG),
        Attachment.from_bytes("a.pdf", PDF),
        Attachment.from_bytes("notes.md", b"# Notes"),
    ],
)


def model_at(server: WireServer, driver: str, **settings: Any) -> Any:
    """The model of a driver at this server."""
    preset = {
        "driver": driver,
        "model": "small-1",
        "base_url": server.url + DIALECTS[driver].prefix,
        "api_key_env": "KEY",
        **settings,
    }
    return Models(Presets.read({"own": preset}, {}), {"KEY": "secret"}).model("own")


def content_in(body: Mapping[str, Any]) -> Any:
    """The content of the only message of a request."""
    (message,) = body.get("input") or body["messages"]
    return message["content"]


@pytest.mark.parametrize("driver", SENT)
async def test_files_have_the_format_of_each_api(driver: str) -> None:
    """5.6.3"""
    async with wire_server() as server:
        server.answers(DIALECTS[driver].events(Answer(["A photo"])))

        response = await ask(model_at(server, driver), MESSAGE)
        await ask(model_at(server, driver, accepts=["pdf"]), MESSAGE)

        assert response.text == "A photo"
        whole, without_images = [content_in(request.body) for request in server.requests]
    assert whole == SENT[driver]
    assert without_images[2] == whole[2]
    assert "the image a.png (image/png, 16 bytes), which you cannot see" in without_images[1]["text"]


@pytest.mark.parametrize("driver", SENT)
async def test_a_refused_request_with_files_says_what_to_set(driver: str) -> None:
    """5.6.3"""
    async with wire_server() as server:
        refusal = DIALECTS[driver].refusal("invalid_request_error", "This model takes no images")
        server.answers(Reply.json(400, refusal))

        with pytest.raises(ModelError, match="This model takes no images") as failed:
            await ask(model_at(server, driver), MESSAGE)
        with pytest.raises(ModelError) as known:
            await ask(model_at(server, driver, accepts=["image", "pdf"]), MESSAGE)
        with pytest.raises(ModelError) as plain:
            await ask(model_at(server, driver), "Hello")

    advice = "if small-1 does not read them, list what it reads in its preset, such as accepts = []"
    assert "The request contains files (image and pdf)" in str(failed.value)
    assert advice in str(failed.value)
    assert advice in (failed.value.advice or "")
    assert "accepts" not in str(known.value) + str(plain.value)


@pytest.mark.parametrize("driver", SENT)
async def test_an_own_server_that_fails_with_files_is_not_asked_again(driver: str) -> None:
    """5.6.3: local servers answer 500 to an image that their model does not read, each time."""
    async with wire_server() as server:
        server.answers(Reply.json(500, DIALECTS[driver].refusal("server_error", "no image input here")))

        with pytest.raises(ModelError) as undeclared:
            await ask(model_at(server, driver), MESSAGE)
        with pytest.raises(ModelUnavailable):
            await ask(model_at(server, driver, accepts=["image", "pdf"]), MESSAGE)
        with pytest.raises(ModelUnavailable):
            await ask(model_at(server, driver), "Hello")
        server.answers(Reply.json(503, DIALECTS[driver].refusal("server_error", "busy")))
        with pytest.raises(ModelUnavailable):
            await ask(model_at(server, driver), MESSAGE)

    assert not isinstance(undeclared.value, RETRYABLE)
    assert "no image input here" in str(undeclared.value)
    assert "such as accepts = []" in (undeclared.value.advice or "")


async def test_status_500_of_a_provider_itself_is_an_outage_also_with_files() -> None:
    """3.5.1: only an own server is taken to refuse the file."""
    async with wire_server() as server:
        server.answers(Reply.json(500, DIALECTS["openai"].refusal("server_error", "try again")))
        model = model_at(server, "openai")
        model.preset = model.preset.model_copy(update={"base_url": None})

        with pytest.raises(ModelUnavailable):
            await ask(model, MESSAGE)


def test_accepts_lists_kinds_of_files() -> None:
    """5.6.3"""
    given = {"driver": "openai", "model": "gpt-5.5"}
    assert Preset.read("own", {**given, "accepts": "image"}).accepts == ("image",)
    assert Preset.read("own", {**given, "accepts": []}).accepts == ()
    with pytest.raises(InvalidInput, match=r"'accepts' lists 'imag'.*did you mean 'image'"):
        Preset.read("own", {**given, "accepts": ["imag"]})
