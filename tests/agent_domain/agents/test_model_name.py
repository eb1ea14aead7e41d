"""Models in one line."""

from typing import Any

import pytest

from everstep.agent_domain.agents.model_name import ModelName, address_problem, require_no_address
from everstep.agent_domain.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("fast", None),
        ("openai:gpt-5.5", ModelName("openai", "gpt-5.5")),
        (" openai : gpt-5.5 ", ModelName("openai", "gpt-5.5")),
        ("openai-chat:qwen3:8b", ModelName("openai-chat", "qwen3:8b")),
        ("anthropic:m@2025", ModelName("anthropic", "m@2025")),
        ("openai-chat:m@v@https://host:1/v1", ModelName("openai-chat", "m@v", "https://host:1/v1")),
    ],
)
def test_a_name_has_a_provider_a_model_and_perhaps_an_address(text: str, parsed: ModelName | None) -> None:
    """11.2"""
    assert ModelName.parse(text) == parsed


@pytest.mark.parametrize("text", [":", "openai:", "openai: ", ":gpt-5.5", "openai:@http://host"])
def test_half_a_name_is_refused(text: str) -> None:
    """11.2"""
    with pytest.raises(InvalidInput, match="names no model; write the provider, a colon and the model"):
        ModelName.parse(text)


@pytest.mark.parametrize(
    "model",
    [
        None,
        "fast",
        "openai:gpt-5.5",
        "openai-chat:m@http://localhost:11434/v1",
        "openai-chat:m@http://127.0.0.1/v1",
        "openai-chat:m@http://[::1]:80/v1",
        {"preset": "fast", "temperature": 0.2},
        {"fallback": ("fast", "openai:small")},
        {"preset": 3, "fallback": "x:"},
    ],
)
def test_files_may_name_models_of_providers_and_of_this_machine(model: Any) -> None:
    """10.1.3"""
    require_no_address(model)


@pytest.mark.parametrize(
    "model",
    [
        "openai-chat:m@https://elsewhere.example/v1",
        "openai-chat:m@http://10.0.0.1/v1",
        "openai-chat:m@http://127.0.0.1@elsewhere.example/v1",
        "openai-chat:m@http://localhost.elsewhere.example/v1",
        "openai-chat:m@http://[::1/v1",
        {"preset": "openai-chat:m@https://elsewhere.example/v1"},
        {"fallback": ["fast", "openai-chat:m@https://elsewhere.example/v1"]},
        {"base_url": "http://127.0.0.1/v1"},
        {"api_key_env": "HOME"},
        {"extra_headers": {"Target-Url": "https://elsewhere.example"}},
    ],
)
def test_files_may_name_no_other_address(model: Any) -> None:
    """10.1.3"""
    assert "write a preset into everstep.toml" in address_problem(model)
    with pytest.raises(InvalidInput, match=r"^'llm_preset' must not hold "):
        require_no_address(model, "llm_preset")
