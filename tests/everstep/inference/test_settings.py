"""The settings of presets, as each provider receives them."""

from typing import Any

import pytest

from everstep.inference import anthropic_messages, openai_chat, openai_responses
from everstep.inference.presets import Preset
from tests.everstep.inference.asking import WEATHER, a_request, ask
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import Answer

Json = dict[str, Any]

BODIES = {
    "openai": openai_responses.request_body,
    "openai-chat": openai_chat.request_body,
    "anthropic": anthropic_messages.request_body,
}


def body(driver: str, settings: Json, **request: Any) -> Json:
    preset = Preset.read("tested", {"driver": driver, "model": "m"} | settings)
    return BODIES[driver](preset, a_request("Hello", **request))


@pytest.mark.parametrize(
    ("driver", "settings", "sent"),
    [
        ("openai", {"top_p": 0.5, "service_tier": "flex"}, {"top_p": 0.5, "service_tier": "flex"}),
        (
            "openai-chat",
            {"top_p": 0.5, "seed": 0, "stop": "END", "service_tier": "flex"},
            {"top_p": 0.5, "seed": 0, "stop": ["END"], "service_tier": "flex"},
        ),
        (
            "anthropic",
            {"stop": ["A", "B"], "service_tier": "standard_only"},
            {"stop_sequences": ["A", "B"], "service_tier": "standard_only"},
        ),
        ("openai-chat", {"extra_body": {"top_k": 5}}, {"top_k": 5}),
        (
            "openai",
            {"reasoning_effort": "low", "extra_body": {"reasoning": {"summary": "auto"}}},
            {"reasoning": {"effort": "low", "summary": "auto"}},
        ),
        # About tools, and there are none.
        ("openai", {"tool_choice": "required", "parallel_tool_calls": False}, {}),
        ("openai-chat", {"tool_choice": "required", "parallel_tool_calls": False}, {}),
        ("anthropic", {"tool_choice": "required", "parallel_tool_calls": False}, {}),
    ],
)
def test_settings_are_sent_in_the_words_of_the_provider(driver: str, settings: Json, sent: Json) -> None:
    """11.3"""
    plain, asked = body(driver, {}), body(driver, settings)

    assert {name: asked[name] for name in asked if asked.get(name) != plain.get(name)} == sent


@pytest.mark.parametrize(
    ("driver", "sent"),
    [
        ("openai", {"tool_choice": "required", "parallel_tool_calls": False}),
        ("openai-chat", {"tool_choice": "required", "parallel_tool_calls": False}),
        ("anthropic", {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}),
    ],
)
def test_settings_about_tools_are_sent_with_tools_unless_the_agent_sets_them(driver: str, sent: Json) -> None:
    """11.3"""
    about_tools = {"tool_choice": "required", "parallel_tool_calls": False}

    assert sent.items() <= body(driver, about_tools, tools=(WEATHER,)).items()
    chosen = body(driver, about_tools, tools=(WEATHER,), tool_choice="auto", parallel_tools=False)
    own = body(
        driver, {"parallel_tool_calls": True}, tools=(WEATHER,), tool_choice="auto", parallel_tools=False
    )
    assert chosen == own


async def test_extra_headers_are_sent_beside_the_key(wire: WireModelServer) -> None:
    """11.3"""
    await wire.script_answers(Answer(("Hello",)))

    await ask(wire.model(extra_headers={"X-Title": "Desk"}), "Hello")

    (request,) = wire.server.requests
    assert request.headers["x-title"] == "Desk"
    assert "sk-secret" in (request.headers.get("authorization", "") + request.headers.get("x-api-key", ""))
