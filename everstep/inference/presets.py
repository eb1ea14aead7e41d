"""Presets: models with their settings, under names that agents use.

    [presets.fast]                      # everstep.toml
    driver = "openai"                   # or openai-chat, anthropic, local, scripted
    model = "gpt-5.4-mini"
    fallback = ["anthropic"]            # asked in this order while it cannot be reached

`openai`, `anthropic`, `demo` and `local` are built in; a section with such a name changes the settings that
it contains. An agent names a preset, or a model in one line: `openai:gpt-5.5` is the preset `openai` with
this model, and `openai-chat:qwen3@http://host/v1` is a driver, a model and an address.

A preset names the environment variable of its key and never contains the key, so it can be printed and
stored. A key is sent to its provider's own address only, unless the preset itself sets both: another
`base_url` and the `api_key_env` to use there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from everstep.agent_domain.agents.model_name import ADDRESS_KEYS, EXAMPLE, ModelName
from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.media_types import FileKind
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.pricing.known_prices import KnownPrices, known_prices
from everstep.agent_domain.pricing.prices import MAX_PRICE, UNKNOWN_PRICE_LIST, PriceList, prices_from
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.inference.json_reading import record


class Driver(StrEnum):
    """The API to use."""

    OPENAI = "openai"
    """The Responses API."""
    OPENAI_CHAT = "openai-chat"
    """Chat Completions, OpenAI's or any compatible server's."""
    ANTHROPIC = "anthropic"
    """The Messages API."""
    SCRIPTED = "scripted"
    """No provider: the answers are in a script."""
    LOCAL = "local"
    """The small model of the extra `local-model`, on this machine."""


_OWN_KEY = {
    Driver.OPENAI: "OPENAI_API_KEY",
    Driver.OPENAI_CHAT: "OPENAI_API_KEY",
    Driver.ANTHROPIC: "ANTHROPIC_API_KEY",
}
_OPENAI_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORTS: Mapping[Driver, tuple[str, ...]] = {
    Driver.OPENAI: _OPENAI_EFFORTS,
    Driver.OPENAI_CHAT: _OPENAI_EFFORTS,
    Driver.ANTHROPIC: ("none", "low", "medium", "high", "xhigh", "max"),
}
_REFUSED: Mapping[Driver, tuple[str, tuple[str, ...]]] = {
    Driver.OPENAI: ("Responses API", ("seed", "stop")),
    Driver.ANTHROPIC: ("Messages API", ("temperature", "top_p", "seed")),
    Driver.LOCAL: (
        "driver 'local'",
        ("base_url", "api_key_env", "reasoning_effort", "service_tier", "extra_headers"),
    ),
    Driver.SCRIPTED: (
        "driver 'scripted'",
        ("reasoning_effort", "service_tier", "extra_headers", "extra_body"),
    ),
}
"""Settings that a provider does not take. A script ignores those that only change how a model writes."""

_STANDARD_TIERS = (None, "auto", "default", "standard", "standard_only")
"""Service tiers whose prices are in the table of known models."""

_OWN_FIELDS = frozenset(
    {"model", "messages", "input", "system", "tools", "stream", "stream_options"}
    | {"max_tokens", "max_output_tokens", "max_completion_tokens"}
)
"""Fields of a request that `extra_body` must not replace: the driver writes them."""
_KINDS = (str(FileKind.IMAGE), str(FileKind.PDF), str(FileKind.TEXT))
"""What a model may accept; every model accepts text."""
_KEY_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


LOCAL_LIMITS: Mapping[str, Any] = {
    "context_window": 8192,
    "max_output_tokens": 1024,
    "temperature": 0,
    "accepts": (),
}
"""Its settings, unless a preset has others: what 2 cores answer in reasonable time."""
LOCAL_MODEL = "qwen2.5-coder-1.5b-instruct"
"""The model of the driver `local`."""


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


MAX_RATE = 1e9
"""The largest limit for a minute."""

Price: TypeAlias = Annotated[float | None, Field(ge=0, le=MAX_PRICE, strict=True, allow_inf_nan=False)]


class Preset(StrictModel):
    """One model with its settings."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(min_length=1)
    driver: Driver
    model: str = ""
    base_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+")
    api_key_env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds the key; without one, no key is sent."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = Field(default=(), max_length=4)
    """The texts before which the answer ends."""
    reasoning_effort: str | None = None
    tool_choice: str | None = Field(default=None, min_length=1)
    """`auto`, `none`, `required` or the name of a tool; a setting of the agent takes precedence."""
    parallel_tool_calls: bool | None = None
    structured_output: Literal["native", "tool"] = "native"
    """How the model is asked for a structured result: `tool` for servers that cannot enforce a schema."""
    service_tier: str | None = Field(default=None, min_length=1)
    extra_headers: FrozenDict = EMPTY
    """Headers to add to each request; never a key."""
    extra_body: FrozenDict = EMPTY
    """Fields to add to each request, for settings of a provider that have no name here."""
    context_window: int | None = Field(default=None, ge=2)
    """How many tokens a request and its answer may have together; None: that of a known model."""
    input_price: Price = None
    """In US dollars for a million tokens, as all prices. None: that of a known model, else unknown."""
    cached_input_price: Price = None
    """Of input that is read from the provider's cache. None: that of other input."""
    cache_write_price: Price = None
    """Of input that is written to the provider's cache. None: that of other input."""
    output_price: Price = None
    reasoning_price: Price = None
    """None: that of other output."""
    accepts: Annotated[tuple[str, ...] | None, BeforeValidator(_as_list)] = None
    """The kinds of files that the model reads, `image` and `pdf`; others are described to it in words.
    None: unknown, so they are sent."""
    timeout_seconds: float = Field(default=300, gt=0)
    """The longest pause: before the first piece of an answer, and between two pieces."""
    retry_seconds: float | None = Field(default=None, ge=0, le=86_400)
    """How long a call that failed in transport is retried, unless the agent sets it; None for the default."""
    requests_per_minute: float | None = Field(default=None, gt=0, le=MAX_RATE, allow_inf_nan=False)
    """How many requests all processes make together; further calls wait, served fairly by tenant and user."""
    tokens_per_minute: float | None = Field(default=None, gt=0, le=MAX_RATE, allow_inf_nan=False)
    """How many tokens the calls of all processes use together."""
    fallback: tuple[str, ...] = ()
    """The presets to ask, in this order, while this one cannot be reached."""
    scenario: str | None = None
    """For the driver `scripted`: the path of its YAML file."""

    @model_validator(mode="before")
    @classmethod
    def _default_key(cls, given: Any) -> Any:
        """Default to the provider's own key if the address is the provider's own."""
        section = record(given)
        if section.get("driver") == Driver.LOCAL:
            return {"model": LOCAL_MODEL, **LOCAL_LIMITS, **section}
        if section.get("base_url") or section.get("api_key_env"):
            return section
        own = next((key for driver, key in _OWN_KEY.items() if driver == section.get("driver")), None)
        return {**section, "api_key_env": own}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse settings that the driver cannot send."""
        scripted = self.driver is Driver.SCRIPTED
        if not self.model and not scripted:
            raise ValueError("'model' is missing")
        if self.driver is Driver.LOCAL and self.model != LOCAL_MODEL:
            raise ValueError(f"the driver 'local' has one model, {LOCAL_MODEL}; leave 'model' out")
        if self.scenario and not scripted:
            raise ValueError("only the driver 'scripted' takes a 'scenario'")
        if self.context_window and (self.max_output_tokens or 0) >= self.context_window:
            raise ValueError("'max_output_tokens' must be smaller than 'context_window'")
        api, refused = _REFUSED.get(self.driver, ("", ()))
        for setting in refused:
            if getattr(self, setting) not in (None, (), EMPTY):
                raise ValueError(f"the {api} takes no '{setting}'; leave it out")
        if self.reasoning_effort is not None and self.reasoning_effort not in _EFFORTS[self.driver]:
            raise ValueError(f"'reasoning_effort' is one of: {', '.join(_EFFORTS[self.driver])}")
        return self

    @field_validator("accepts")
    @classmethod
    def _kinds(cls, kinds: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for kind in kinds or ():
            if kind not in _KINDS:
                known = ", ".join(map(repr, _KINDS))
                raise ValueError(f"'accepts' lists {kind!r}; choose from {known}{did_you_mean(kind, _KINDS)}")
        return kinds

    @field_validator("extra_headers")
    @classmethod
    def _headers(cls, headers: FrozenDict) -> FrozenDict:
        for name, value in headers.items():
            if not isinstance(value, str) or not value.isascii() or not value.isprintable():
                raise ValueError(f"the header {name!r} needs a text in ASCII, on one line")
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a header")
            if name.lower() in _KEY_HEADERS:
                raise ValueError(f"'{name}' holds a key: name its environment variable with 'api_key_env'")
        return headers

    @field_validator("extra_body")
    @classmethod
    def _body(cls, body: FrozenDict) -> FrozenDict:
        if own := sorted(_OWN_FIELDS & body.keys()):
            raise ValueError(f"{', '.join(map(repr, own))} is written by the driver; leave it out")
        return body

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any]) -> "Preset":
        """Read a section of everstep.toml.

        Raises:
            InvalidInput: The section is invalid; the message contains no values.
        """
        if "api_key" in given:
            raise InvalidInput(
                f"preset '{name}': put the key into an environment variable and name that with "
                "'api_key_env' instead of setting 'api_key'"
            )
        try:
            return cls.model_validate({"name": name, **given})
        except ValidationError as error:
            raise InvalidInput(f"preset '{name}': {faults(error)}") from None

    def key(self, environ: Mapping[str, str]) -> str | None:
        """The key to send; None if the preset has none.

        Raises:
            InvalidInput: The environment variable is not set, or its value cannot be a key.
        """
        if self.api_key_env is None:
            return None
        key = environ.get(self.api_key_env, "").strip()
        if not key:
            raise InvalidInput(f"preset '{self.name}' needs a key; set {self.api_key_env}")
        if not key.isascii() or not key.isprintable():
            raise InvalidInput(f"{self.api_key_env} holds characters that no key has; copy the key again")
        return key

    @property
    def prices(self) -> PriceList:
        """What the model's tokens cost: the preset's prices, and for those it does not set, the known ones.

        Known prices are those of a provider's standard service tier, and do not apply to others.
        """
        known = table_prices(self)
        listed = known.prices if known else UNKNOWN_PRICE_LIST
        return listed.with_own(prices_from({key: getattr(self, key) for key in PRICE_KEYS}))

    @property
    def origin(self) -> str:
        """Identifies the model: opaque items of one origin mean nothing to another."""
        return f"{self.driver} {self.model} {self.base_url or 'default'}"


PRICE_KEYS = ("input_price", "cached_input_price", "cache_write_price", "output_price", "reasoning_price")
MODEL_FACTS = ("accepts", "context_window", *PRICE_KEYS)
"""Settings that describe one model, and do not apply to another one of the same preset."""


def table_prices(preset: Preset) -> KnownPrices | None:
    """The row of a preset's model in the table of known prices; None if none fits its service tier."""
    return known_prices(preset.model) if preset.service_tier in _STANDARD_TIERS else None


OPENAI, ANTHROPIC, DEMO, LOCAL = "openai", "anthropic", "demo", "local"

BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    OPENAI: {"driver": Driver.OPENAI, "model": "gpt-5.5"},
    ANTHROPIC: {"driver": Driver.ANTHROPIC, "model": "claude-opus-5-5"},
    DEMO: {"driver": Driver.SCRIPTED, "model": "demo"},
    LOCAL: {"driver": Driver.LOCAL, "model": LOCAL_MODEL, "input_price": 0, "output_price": 0},
}
"""The presets that every installation has."""


@dataclass(frozen=True, slots=True)
class Presets:
    """All presets of an installation, and the default for agents that name none."""

    by_name: Mapping[str, Preset]
    default: str

    @classmethod
    def read(
        cls,
        sections: Mapping[str, Mapping[str, Any]],
        environ: Mapping[str, str],
        default: str | None = None,
    ) -> "Presets":
        """Read the sections `[presets.NAME]`.

        The default is `default` if it is given; else a preset named `default`; else the provider whose key is
        set; else the scripted demo model.
        """
        written = {name: {**_built_in(name, section), **section} for name, section in sections.items()}
        presets = {name: Preset.read(name, given) for name, given in {**BUILT_IN, **written}.items()}
        read = cls(FrozenDict(presets), default or _default_name(presets, environ))
        read.resolve()
        for preset in presets.values():
            read.chain(preset)
        return read

    @property
    def names(self) -> tuple[str, ...]:
        """The names; the built-in ones come first."""
        return tuple(self.by_name)

    def get(self, name: str) -> Preset:
        """The preset with this name.

        Raises:
            UnknownName: There is none.
        """
        if name not in self.by_name:
            how = f"Name a model with its provider, as in {EXAMPLE}, or choose from"
            raise UnknownName("preset", name, self.names, verb=how)
        return self.by_name[name]

    def resolve(self, wanted: str | Mapping[str, Any] | None = None) -> Preset:
        """The preset for an agent: by name, by a model in one line, by settings, or the default.

        Settings without a driver are changes to the preset that they name under `preset`, or to the default.

        Raises:
            UnknownName: There is no such preset.
            InvalidInput: The settings cannot be used.
        """
        if wanted is None:
            return self._named(self.default)
        if isinstance(wanted, str):
            return self._named(wanted)
        named = self._named(wanted.get("preset") or self.default)
        changes = {key: value for key, value in wanted.items() if key != "preset"}
        preset = _changed("inline", {} if "driver" in changes else named, changes)
        self.chain(preset)
        return preset

    def _named(self, name: str) -> Preset:
        """The preset with this name, or for the model that is written in one line."""
        one_line = None if name in self.by_name else ModelName.parse(name)
        if one_line is None:
            return self.get(name)
        provider, changes = one_line.provider, {"model": one_line.model}
        if one_line.base_url is not None:
            changes["base_url"] = one_line.base_url
        if provider in self.by_name:
            return _changed(name, self.by_name[provider], changes)
        if provider not in set(Driver):
            raise UnknownName("preset or driver", provider, dict.fromkeys([*self.names, *Driver]))
        if provider == Driver.SCRIPTED:
            changes = {"scenario": one_line.model}
        return _changed(name, {}, {"driver": provider, **changes})

    def chain(self, preset: Preset) -> tuple[Preset, ...]:
        """The preset and its fallbacks; those of the fallbacks are ignored."""
        return (preset, *(self._named(name) for name in preset.fallback if name != preset.name))


def _built_in(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The built-in settings that a section changes; a preset `local` with another driver has none of them."""
    built_in = BUILT_IN.get(name, {})
    is_other = name == LOCAL and section.get("driver", Driver.LOCAL) != Driver.LOCAL
    return {} if is_other else built_in


def _changed(name: str, base: "Preset | Mapping[str, Any]", changes: Mapping[str, Any]) -> Preset:
    """The preset with some changes. Neither the key nor the headers are sent to another address."""
    settings: dict[str, Any] = dict(base.model_dump(exclude_unset=True) if isinstance(base, Preset) else base)
    if "base_url" in changes:
        settings = {key: value for key, value in settings.items() if key not in ADDRESS_KEYS}
    if changes.get("model", settings.get("model")) != settings.get("model"):
        settings = {key: value for key, value in settings.items() if key not in MODEL_FACTS}
    return Preset.read(name, {**settings, **changes, "name": name})


def _default_name(presets: Mapping[str, Preset], environ: Mapping[str, str]) -> str:
    if "default" in presets:
        return "default"
    keyed = (name for name in (OPENAI, ANTHROPIC) if environ.get(presets[name].api_key_env or "", "").strip())
    return next(keyed, DEMO)
