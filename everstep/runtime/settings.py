"""Everything that can be set, in one frozen value, read once.

From the strongest to the weakest: arguments, environment (`EVERSTEP_...`, and the usual
`DATABASE_URL`, `TEMPORAL_ADDRESS`), `everstep.toml` in the working folder, defaults.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import derived_secret


def _words(value: object) -> object:
    """A variable of the environment holds several, separated by commas."""
    return (
        tuple(word for part in value.split(",") if (word := part.strip()))
        if isinstance(value, str)
        else value
    )


Days = Annotated[float, Field(gt=0, le=36_500)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]


class Settings(BaseSettings):
    """One installation's settings."""

    model_config = SettingsConfigDict(
        env_prefix="EVERSTEP_", toml_file="everstep.toml", frozen=True, extra="forbid", populate_by_name=True
    )

    data_dir: Path | None = Field(
        default=None, validation_alias=AliasChoices("EVERSTEP_DATA", "EVERSTEP_DATA_DIR", "data_dir")
    )
    """Where a local installation keeps its data. None: see `everstep.runtime.data_folder`."""
    database_url: str | None = Field(
        default=None, validation_alias=AliasChoices("EVERSTEP_DATABASE_URL", "DATABASE_URL", "database_url")
    )
    """The PostgreSQL database: `postgresql+psycopg://user:password@host/name`. `everstep up` has its own."""
    temporal_address: str | None = Field(
        default=None,
        validation_alias=AliasChoices("EVERSTEP_TEMPORAL_ADDRESS", "TEMPORAL_ADDRESS", "temporal_address"),
    )
    """The Temporal server, as `host:port`. `everstep up` has its own."""
    temporal_namespace: str = Field(
        default="default",
        validation_alias=AliasChoices(
            "EVERSTEP_TEMPORAL_NAMESPACE", "TEMPORAL_NAMESPACE", "temporal_namespace"
        ),
    )
    """The namespace of executions in Temporal."""
    temporal_tls: bool = False
    """Whether connections to Temporal use TLS."""
    temporal_api_key: str | None = Field(
        default=None,
        validation_alias=AliasChoices("EVERSTEP_TEMPORAL_API_KEY", "TEMPORAL_API_KEY", "temporal_api_key"),
    )
    """An API key for Temporal Cloud."""
    ui_url: str | None = None
    """Where Temporal's web UI is, for links."""
    payload_key: str | None = None
    """32 random bytes in base64: with it, Temporal stores payloads that it cannot read."""
    accept_plain_payloads: bool = False
    """Whether payloads are read that are not encrypted, although `payload_key` is set: while executions run
    that began before it was."""
    task_queue: str = "everstep"
    """The Temporal task queue of the workers. Installations that share a namespace need different ones."""
    build_id: str | None = None
    """The version of what a worker runs. Executions stay on the version that they began with (PINNED);
    a new one is used for new executions once it is made current in Temporal. None: not versioned."""
    search_attributes: bool = False
    """Whether the Temporal server knows Everstep's search attributes."""
    agents: Words = ()
    """Where this process finds its agents: folders, files, `module:attribute`. It looks nowhere else."""
    default_agent: str | None = None
    """The agent of sessions that name none; the first of the agents if this is not set."""
    related_types: Words = ()
    """What sessions and messages may be about: the related_types that are allowed."""
    context_policy: str | None = None
    """Who may speak about what: `module:attribute`, an object, or a class without arguments, with
    `async def check(self, context, caller)`."""
    http_host: str = "127.0.0.1"
    """Where the HTTP API listens; 0.0.0.0 for everybody who reaches this machine."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """0: a free one."""
    http_connections: int = Field(default=2000, ge=1)
    """Connections to the HTTP API at once, with those of its streams; file descriptors may allow fewer."""
    http_connections_per_address: int = Field(default=500, ge=1)
    """Of them from one address. Behind a proxy all come from one address."""
    auth: Literal["on", "off"] = "on"
    """Off: whoever reaches the API may do everything."""
    auth_secret: str | None = Field(default=None, min_length=32)
    """What signs tokens (HS256), known to whoever issues them."""
    auth_jwks_url: str | None = None
    """Where an identity provider publishes the keys that sign its tokens."""
    auth_issuer: str | None = None
    """What a token has to name as `iss`. Required with `auth_jwks_url`; `any` accepts every issuer."""
    auth_audience: str | None = None
    """What a token has to name as `aud`. Required with `auth_jwks_url`; `any` accepts every audience."""
    allowed_origins: Words = ()
    """The pages, beside those from the API's own address, that may use the API in a browser."""
    allowed_hosts: Words = ()
    """The names by which the API and the gateway are reached, beside those of the loopback interface: names,
    `*.example.com`, addresses, ranges of addresses, or `*` for any."""
    broadcast_key: str = "everstep"
    """The name of the gateway's application, in the words of Pusher's protocol."""
    broadcast_secret: str | None = Field(default=None, min_length=32)
    """What signs who may join a channel, and lets writers link to gateways; without one it follows from
    `auth_secret`."""
    gateway_host: str = "127.0.0.1"
    """Where the gateway listens, to viewers and to whoever writes; 0.0.0.0 for everybody who reaches this
    machine."""
    gateway_port: int = Field(default=6001, ge=0, le=65535)
    """0: a free one."""
    gateway_port_is_shared: bool = False
    """Whether several gateways of this machine listen on the same port (SO_REUSEPORT)."""
    gateway_link_host: str | None = None
    """The name by which whoever writes reaches this gateway: its host, or this machine's name."""
    gateway_link_port: int = Field(default=0, ge=0, le=65535)
    """Where whoever writes reaches it; 0: a free one, as each gateway says where it is."""
    gateway_connections_per_address: int = Field(default=2000, ge=1)
    """Behind a proxy all viewers come from one address."""
    gateway_handshakes_per_second: float = Field(default=1000, gt=0)
    """New connections; who comes beyond that is asked to come again."""
    gateway_drain_seconds: float = Field(default=5.0, ge=0, le=600)
    """Over which the viewers of a gateway that stops are sent elsewhere."""
    gateway_url: str | None = None
    """Where viewers reach the gateway, such as wss://watch.example; it is told to those who ask the API."""
    presets: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Model settings by name: `[presets.NAME]` in everstep.toml."""
    preset: str | None = None
    """The preset for agents that name none."""
    mcp: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """The MCP servers that agents in files may name: `[mcp.NAME]` in everstep.toml."""
    error_details: bool = False
    """Whether whoever may see an execution reads all words of its errors, instead of their kind and a
    reference that the operator's log and `everstep show` resolve."""
    keep_answers_days: Days = 1
    """How long an `Idempotency-Key` is known at least: `everstep prune` removes what is older."""
    keep_sessions_days: Days | None = None
    """How long a session is kept in which nothing changes. None, here and below: for good."""
    keep_executions_days: Days | None = None
    """How long an execution without a session is kept after its end."""
    keep_envelopes_days: Days | None = None
    """How far back viewers can resume a stream."""
    cgroup: Path | None = None
    """A cgroup (version 2) that is this worker's alone: commands of agents get their own in there. None: the
    one that systemd delegates (`Delegate=yes`), or none."""
    failpoint: str | None = None
    """For crash tests only: where a worker dies, or a frame is lost. See `armed` and `losing` in
    `everstep.runtime.worker`."""
    graceful_shutdown_seconds: float = 60.0
    """How long a stopping worker lets running model calls finish."""

    @property
    def gateway_secret(self) -> str | None:
        """What the gateway, its writers and whoever signs for channels know; None if there is none."""
        if self.broadcast_secret is None and self.auth_secret is not None:
            return derived_secret(self.auth_secret)
        return self.broadcast_secret

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, environment, everstep.toml."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @classmethod
    def read(cls, **given: Any) -> "Settings":
        """Read them once; what is wrong is said in one sentence."""
        try:
            return cls(**{key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            raise InvalidInput(f"the settings cannot be used: {faults(error)}") from None
        except ValueError as error:
            raise InvalidInput(f"everstep.toml cannot be read: {error}") from None

    def listening_on(self, **ports: int | None) -> "Settings":
        """The same with other ports, where some are given."""
        return self.model_copy(update={name: port for name, port in ports.items() if port is not None})

    def required(self, name: str, how: str) -> str:
        """A setting that a process cannot do without."""
        value = getattr(self, name)
        if not value:
            raise InvalidInput(f"{name} is not set: {how}")
        return value
