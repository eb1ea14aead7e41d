"""Presets: named models, without their keys."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.inference.presets import Driver, Preset, Presets

Json = dict[str, Any]


def presets(sections: Json | None = None, default: str | None = None, **environ: str) -> Presets:
    return Presets.read(sections or {}, environ, default)


# One preset.


def test_a_preset_is_a_section_under_a_name() -> None:
    section = {
        "driver": "openai",
        "model": "gpt-5.4-mini",
        "max_output_tokens": 1000,
        "temperature": 0.2,
        "reasoning_effort": "low",
        "timeout_seconds": 20,
        "fallback": ["anthropic"],
    }

    preset = presets({"fast": section}).get("fast")

    assert preset == Preset(
        name="fast",
        driver=Driver.OPENAI,
        model="gpt-5.4-mini",
        api_key_env="OPENAI_API_KEY",
        max_output_tokens=1000,
        temperature=0.2,
        reasoning_effort="low",
        timeout_seconds=20,
        fallback=("anthropic",),
    )


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({}, "driver: Field required"),
        ({"driver": "bard", "model": "m"}, "driver: Input should be 'openai', 'openai-chat'"),
        ({"driver": "openai"}, "'model' is missing"),
        ({"driver": "openai", "model": "m", "modle": "m"}, "modle: there is no such key; choose from: "),
        ({"driver": "openai", "model": "m", "timeout_seconds": 0}, "timeout_seconds: "),
        ({"driver": "openai", "model": "m", "max_output_tokens": 0}, "max_output_tokens: "),
        ({"driver": "openai", "model": "m", "temperature": 3}, "temperature: "),
        ({"driver": "openai", "model": "m", "base_url": "localhost:80"}, "base_url: "),
        ({"driver": "openai", "model": "m", "scenario": "x.yaml"}, "only the driver 'scripted'"),
        ({"driver": "openai", "model": "m", "reasoning_effort": "much"}, "is one of: none, minimal, low"),
        (
            {"driver": "anthropic", "model": "m", "reasoning_effort": "minimal"},
            "'reasoning_effort' is one of",
        ),
        ({"driver": "anthropic", "model": "m", "temperature": 1}, "the Messages API takes no 'temperature'"),
        ({"driver": "anthropic", "model": "m", "top_p": 0.5}, "the Messages API takes no 'top_p'"),
        ({"driver": "anthropic", "model": "m", "seed": 0}, "the Messages API takes no 'seed'"),
        ({"driver": "openai", "model": "m", "seed": 1}, "the Responses API takes no 'seed'"),
        ({"driver": "openai", "model": "m", "stop": "END"}, "the Responses API takes no 'stop'"),
        ({"driver": "openai", "model": "m", "top_p": 0}, "top_p: "),
        ({"driver": "openai-chat", "model": "m", "stop": list("abcde")}, "stop: "),
        ({"driver": "openai", "model": "m", "context_window": 0}, "context_window: "),
        ({"driver": "openai", "model": "m", "output_price": -1}, "output_price: "),
        ({"driver": "openai", "model": "m", "input_price": "cheap"}, "input_price: "),
        ({"driver": "openai", "model": "m", "input_price": True}, "input_price: "),
        ({"driver": "openai", "model": "m", "cache_write_price": 2e6}, "cache_write_price: "),
        ({"driver": "openai", "model": "m", "cached_input_price": float("nan")}, "cached_input_price: "),
        ({"driver": "openai", "model": "m", "extra_headers": {"X-A": 1}}, "'X-A' needs a text in ASCII"),
        ({"driver": "openai", "model": "m", "extra_headers": {"a b": "c"}}, "cannot be the name of a header"),
        ({"driver": "openai", "model": "m", "extra_headers": {"Api-Key": "k"}}, "with 'api_key_env'"),
        ({"driver": "openai", "model": "m", "extra_body": {"stream": False}}, "'stream' is written by"),
        ({"driver": "scripted", "reasoning_effort": "low"}, "takes no 'reasoning_effort'"),
    ],
)
def test_an_invalid_section_is_refused_by_name(section: Json, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        presets({"fast": section})

    assert str(refused.value).startswith("preset 'fast': ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("key", "near"),
    [("temprature", "temperature"), ("max_tokens", "max_output_tokens"), ("input_prices", "input_price")],
)
def test_an_unknown_setting_is_refused_with_the_nearest_and_all(key: str, near: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        presets({"fast": {"driver": "openai", "model": "m", key: 1}})

    text = str(refused.value)
    assert text.startswith(f"preset 'fast': {key}: there is no such key; choose from: ")
    assert f"did you mean '{near}'?" in text
    assert "driver, model, base_url" in text


def test_presets_with_equal_settings_are_equal() -> None:
    """A process keeps one model for equal presets."""
    section = {"driver": "openai-chat", "model": "m", "extra_body": {"provider": {"order": ["a"]}}}
    first, second = (Preset.read("x", section | {"stop": stop}) for stop in ("END", ["END"]))

    assert (first, hash(first)) == (second, hash(second))


def test_keys_are_not_allowed_in_files() -> None:
    with pytest.raises(InvalidInput, match="'api_key_env' instead of setting 'api_key'") as refused:
        presets({"fast": {"driver": "openai", "model": "m", "api_key": "sk-secret"}})

    assert "sk-secret" not in str(refused.value)


def test_no_error_repeats_the_value() -> None:
    with pytest.raises(InvalidInput) as refused:
        presets({"fast": {"driver": "openai", "model": "m", "token": "sk-secret"}})

    assert "sk-secret" not in str(refused.value)


# Keys.


@pytest.mark.parametrize(
    ("section", "variable"),
    [
        ({"driver": "openai"}, "OPENAI_API_KEY"),
        ({"driver": "openai-chat"}, "OPENAI_API_KEY"),
        ({"driver": "anthropic"}, "ANTHROPIC_API_KEY"),
        ({"driver": "openai", "api_key_env": "MINE"}, "MINE"),
        ({"driver": "scripted"}, None),
        # A custom address gets only the key that the preset itself names.
        ({"driver": "openai", "base_url": "https://example.com"}, None),
        ({"driver": "anthropic", "base_url": "https://example.com"}, None),
        ({"driver": "openai-chat", "base_url": "https://example.com", "api_key_env": "THEIRS"}, "THEIRS"),
    ],
)
def test_a_key_is_for_its_own_provider_unless_configured(section: Json, variable: str | None) -> None:
    assert Preset.read("fast", {"model": "m"} | section).api_key_env == variable


def test_blanks_around_a_key_are_stripped() -> None:
    assert presets().get("openai").key({"OPENAI_API_KEY": " sk-1\n"}) == "sk-1"


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_API_KEY": " \n"}])
def test_a_missing_key_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="preset 'openai' needs a key; set OPENAI_API_KEY"):
        presets().get("openai").key(environ)


@pytest.mark.parametrize("key", ["sk-\u2026", "sk-1\nsk-2", "sk-\x00"])
def test_an_invalid_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        presets().get("openai").key({"OPENAI_API_KEY": key})

    expected = "OPENAI_API_KEY holds characters that no key has; copy the key again"
    assert str(refused.value) == expected


def test_a_server_without_keys_gets_none() -> None:
    local = {"driver": "openai-chat", "model": "m", "base_url": "http://localhost:11434/v1"}

    assert Preset.read("local", local).key({"OPENAI_API_KEY": "sk-1"}) is None


# All presets.


def test_some_presets_are_built_in() -> None:
    assert presets().names == ("openai", "anthropic", "demo", "local")
    assert presets().get("demo").driver is Driver.SCRIPTED


def test_a_section_overrides_the_named_fields() -> None:
    changed = presets({"openai": {"model": "gpt-5.4-mini"}}).get("openai")

    assert changed.driver is Driver.OPENAI
    assert changed.model == "gpt-5.4-mini"


@pytest.mark.parametrize(
    ("sections", "default", "environ", "expected"),
    [
        ({}, None, {}, "demo"),
        ({}, None, {"ANTHROPIC_API_KEY": "k"}, "anthropic"),
        ({}, None, {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "openai"),
        ({}, None, {"ANTHROPIC_API_KEY": " ", "OPENAI_API_KEY": ""}, "demo"),
        ({"openai": {"api_key_env": "MINE"}}, None, {"MINE": "k"}, "openai"),
        ({}, "anthropic", {"OPENAI_API_KEY": "k"}, "anthropic"),
        ({"default": {"driver": "scripted"}}, None, {"OPENAI_API_KEY": "k"}, "default"),
        ({"default": {"driver": "scripted"}}, "openai", {}, "openai"),
    ],
)
def test_the_default_is_the_configured_or_the_first_usable_preset(
    sections: Json, default: str | None, environ: dict[str, str], expected: str
) -> None:
    assert Presets.read(sections, environ, default).default == expected


@pytest.mark.parametrize(
    ("sections", "default"),
    [({}, "fast"), ({"a": {"driver": "scripted", "fallback": ["fast"]}}, None)],
)
def test_an_unknown_name_is_refused_at_once(sections: Json, default: str | None) -> None:
    with pytest.raises(UnknownName, match=r"No preset named 'fast'\..* choose from: openai, anthropic, demo"):
        presets(sections, default)


def test_a_chain_is_the_preset_and_its_fallbacks() -> None:
    """Neither itself nor the fallbacks of its fallbacks."""
    read = presets(
        {
            "a": {"driver": "scripted", "fallback": ["a", "b", "demo"]},
            "b": {"driver": "scripted", "fallback": ["a", "openai"]},
        }
    )

    assert [preset.name for preset in read.chain(read.get("a"))] == ["a", "b", "demo"]


def test_an_agent_names_a_preset_or_uses_the_default() -> None:
    """9.6.5: a text is the name of a preset."""
    read = presets(OPENAI_API_KEY="k")

    assert read.resolve("anthropic").name == "anthropic"
    assert read.resolve().name == "openai"
    with pytest.raises(UnknownName):
        read.resolve("fast")


def test_an_agent_may_have_its_own_settings() -> None:
    """9.6.5: an object is the configuration itself."""
    read = presets(OPENAI_API_KEY="k")

    own = read.resolve({"driver": "anthropic", "model": "m"})
    changed = read.resolve({"model": "gpt-5.4-mini", "max_output_tokens": 9})

    assert (own.name, own.driver, own.api_key_env) == ("inline", Driver.ANTHROPIC, "ANTHROPIC_API_KEY")
    assert (changed.driver, changed.model, changed.max_output_tokens) == (Driver.OPENAI, "gpt-5.4-mini", 9)
    assert changed.api_key_env == "OPENAI_API_KEY"


def test_settings_of_an_agent_send_no_key_to_another_address() -> None:
    read = presets(OPENAI_API_KEY="k")

    assert read.resolve({"base_url": "https://example.com"}).api_key_env is None


def test_invalid_settings_of_an_agent_are_refused_like_any_other() -> None:
    with pytest.raises(
        InvalidInput, match=r"preset 'inline': modle: there is no such key; .*; did you mean 'model'"
    ):
        presets().resolve({"driver": "openai", "model": "m", "modle": "x"})
    with pytest.raises(UnknownName):
        presets().resolve({"fallback": ["fast"]})


# Models in one line.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai:gpt-5.5", ("openai", "gpt-5.5", None, "OPENAI_API_KEY")),
        ("openai-chat:m", ("openai-chat", "m", None, "OPENAI_API_KEY")),
        ("anthropic:m@20250101", ("anthropic", "m@20250101", None, "ANTHROPIC_API_KEY")),
        ("openai-chat:qwen3:8b@http://host/v1", ("openai-chat", "qwen3:8b", "http://host/v1", None)),
        ("router:x/y", ("openai-chat", "x/y", "https://router.example/v1", "ROUTER_KEY")),
        # Neither the key nor the headers of a preset go to another address.
        ("router:x@https://host/v1", ("openai-chat", "x", "https://host/v1", None)),
    ],
)
def test_a_model_is_named_in_one_line(name: str, expected: tuple[str | None, ...]) -> None:
    """11.2"""
    url = "https://router.example/v1"
    router = {"driver": "openai-chat", "model": "m", "base_url": url, "api_key_env": "ROUTER_KEY"}
    read = presets({"router": router | {"extra_headers": {"X-Title": "Desk"}}})

    preset = read.resolve(name)

    assert (preset.driver, preset.model, preset.base_url, preset.api_key_env) == expected
    assert preset.name == name
    assert bool(preset.extra_headers) == (preset.base_url == url)


def test_another_model_of_a_preset_keeps_its_settings_but_not_its_prices() -> None:
    """11.2"""
    facts = {"context_window": 9, "input_price": 1, "output_price": 2}
    read = presets({"openai": {"timeout_seconds": 7, **facts}})

    same, other = read.resolve("openai:gpt-5.5"), read.resolve("openai:small")

    assert (same.timeout_seconds, same.context_window, same.input_price) == (7, 9, 1)
    assert (other.timeout_seconds, other.context_window, other.input_price) == (7, None, None)
    assert read.resolve({"model": "small", "preset": "openai"}).output_price is None


def test_prices_of_a_preset_replace_those_of_the_table() -> None:
    """4.7.2: whatever the address; the table is for the standard tier."""
    server = {"driver": "openai-chat", "model": "gpt-5.5", "base_url": "http://127.0.0.1:1/v1"}
    read = presets(
        {
            "own": server | {"input_price": 0.1},
            "flex": server | {"service_tier": "flex"},
            "flex-priced": server | {"service_tier": "flex", "input_price": 1, "output_price": 2},
            "unknown": server | {"model": "qwen3"},
        }
    )

    priced = {name: read.resolve(name).prices for name in ("openai", "own", "flex", "flex-priced", "unknown")}

    assert (priced["openai"].prices.input, priced["openai"].prices.output) == (5, 30)
    assert (priced["own"].prices.input, priced["own"].prices.output) == (Decimal("0.1"), 30)
    assert priced["own"].prices.cached_input == Decimal("0.50")
    assert not priced["flex"].is_known
    assert (priced["flex-priced"].prices.input, priced["flex-priced"].prices.output) == (1, 2)
    assert not priced["unknown"].is_known


def test_a_model_in_one_line_stands_wherever_a_preset_does(tmp_path: Path) -> None:
    """11.2: as the default, as a fallback, under `preset`; a script is named by its path."""
    read = presets({"a": {"driver": "scripted", "fallback": ["openai:small"]}}, "anthropic:m")

    assert read.resolve().model == "m"
    assert [preset.model for preset in read.chain(read.get("a"))] == ["", "small"]
    changed = read.resolve({"preset": "openai:small", "max_output_tokens": 9})
    assert (changed.model, changed.max_output_tokens) == ("small", 9)
    assert read.resolve(f"scripted:{tmp_path}/a.yaml").scenario == f"{tmp_path}/a.yaml"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "opnai:gpt-5.5",
            "No preset or driver named 'opnai'. Choose from: openai, anthropic, demo, local, openai-chat",
        ),
        ("gpt-5.5", "No preset named 'gpt-5.5'. Name a model with its provider, as in openai:gpt-5.5"),
        ("openai:", "'openai:' names no model; write the provider, a colon and the model, as in"),
        (":gpt-5.5", "':gpt-5.5' names no model"),
        ("openai-chat:@http://host/v1", "'openai-chat:@http://host/v1' names no model"),
        ("openai-chat:m@http://", "preset 'openai-chat:m@http://': base_url: "),
    ],
)
def test_a_wrong_name_of_a_model_is_refused_with_the_right_form(name: str, problem: str) -> None:
    """11.2"""
    with pytest.raises(InvalidInput) as refused:
        presets().resolve(name)

    assert str(refused.value).startswith(problem)


def test_only_the_same_model_at_the_same_address_is_the_same_origin() -> None:
    base = {"driver": "openai", "model": "m"}
    others = [{"model": "n"}, {"driver": "openai-chat"}, {"base_url": "https://example.com"}]
    origins = {Preset.read("x", base | other).origin for other in others}

    assert len({*origins, Preset.read("x", base).origin}) == 4
    assert Preset.read("y", base | {"temperature": 1}).origin == Preset.read("x", base).origin
