"""Presets: models with their settings, under names that agents use.

    [presets.fast]                      # everstep.toml
    driver = "openai"                   # openai, openai-chat, anthropic or scripted
    model = "gpt-5.4-mini"
    fallback = ["anthropic"]            # asked in this order while it cannot be reached

`openai`, `anthropic` and `demo` are built in; a section with such a name changes the settings that it
contains. A preset names the environment variable of its key and never contains the key, so it can be printed
and stored. A key is sent to its provider's own address only, unless the preset itself sets both: another
`base_url` and the `api_key_env` to use there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.values import FrozenDict
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


_OWN_KEY = {
    Driver.OPENAI: "OPENAI_API_KEY",
    Driver.OPENAI_CHAT: "OPENAI_API_KEY",
    Driver.ANTHROPIC: "ANTHROPIC_API_KEY",
}
_OPENAI_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_EFFORTS = {
    Driver.OPENAI: _OPENAI_EFFORTS,
    Driver.OPENAI_CHAT: _OPENAI_EFFORTS,
    Driver.ANTHROPIC: frozenset({"none", "low", "medium", "high", "xhigh", "max"}),
    Driver.SCRIPTED: frozenset[str](),
}


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
    reasoning_effort: str | None = None
    timeout_seconds: float = Field(default=300, gt=0)
    """The longest pause: before the first piece of an answer, and between two pieces."""
    retry_seconds: float | None = Field(default=None, ge=0, le=86_400)
    """How long a call that failed in transport is retried, unless the agent sets it; None for the default."""
    fallback: tuple[str, ...] = ()
    """The presets to ask, in this order, while this one cannot be reached."""
    scenario: str | None = None
    """For the driver `scripted`: the path of its YAML file."""

    @model_validator(mode="before")
    @classmethod
    def _default_key(cls, given: Any) -> Any:
        """Default to the provider's own key if the address is the provider's own."""
        section = record(given)
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
        if self.scenario and not scripted:
            raise ValueError("only the driver 'scripted' takes a 'scenario'")
        if self.temperature is not None and self.driver is Driver.ANTHROPIC:
            raise ValueError("the Messages API takes no 'temperature'; leave it out")
        efforts = _EFFORTS[self.driver]
        if self.reasoning_effort is not None and self.reasoning_effort not in efforts:
            raise ValueError(
                f"'reasoning_effort' is one of: {', '.join(sorted(efforts))}"
                if efforts
                else f"the driver '{self.driver}' takes no 'reasoning_effort'; leave it out"
            )
        return self

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
    def origin(self) -> str:
        """Identifies the model: opaque items of one origin mean nothing to another."""
        return f"{self.driver} {self.model} {self.base_url or 'default'}"


OPENAI, ANTHROPIC, DEMO = "openai", "anthropic", "demo"

BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    OPENAI: {"driver": Driver.OPENAI, "model": "gpt-5.5"},
    ANTHROPIC: {"driver": Driver.ANTHROPIC, "model": "claude-opus-5-5"},
    DEMO: {"driver": Driver.SCRIPTED, "model": "demo"},
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
        written = {name: {**BUILT_IN.get(name, {}), **section} for name, section in sections.items()}
        presets = {name: Preset.read(name, given) for name, given in {**BUILT_IN, **written}.items()}
        read = cls(FrozenDict(presets), default or _default_name(presets, environ))
        read.get(read.default)
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
            raise UnknownName("preset", name, self.names)
        return self.by_name[name]

    def resolve(self, wanted: str | Mapping[str, Any] | None = None) -> Preset:
        """The preset for an agent: by name, by settings, or the default.

        Settings without a driver are changes to the preset that they name under `preset`, or to the default.
        """
        if wanted is None:
            return self.get(self.default)
        if isinstance(wanted, str):
            return self.get(wanted)
        named = self.get(wanted.get("preset") or self.default)
        wanted = {key: value for key, value in wanted.items() if key != "preset"}
        base = {} if "driver" in wanted else named.model_dump(exclude_unset=True)
        if "base_url" in wanted:
            base.pop("api_key_env", None)
        preset = Preset.read("inline", {**base, **wanted, "name": "inline"})
        self.chain(preset)
        return preset

    def chain(self, preset: Preset) -> tuple[Preset, ...]:
        """The preset and its fallbacks; those of the fallbacks are ignored."""
        return (preset, *(self.get(name) for name in preset.fallback if name != preset.name))


def _default_name(presets: Mapping[str, Preset], environ: Mapping[str, str]) -> str:
    if "default" in presets:
        return "default"
    keyed = (name for name in (OPENAI, ANTHROPIC) if environ.get(presets[name].api_key_env or "", "").strip())
    return next(keyed, DEMO)
