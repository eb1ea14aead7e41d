"""All settings, in one frozen value that is read once.

From the highest precedence to the lowest: arguments, environment (`EVERSTEP_...`, and the usual
`DATABASE_URL`, `TEMPORAL_ADDRESS`), `everstep.toml` in the working folder, defaults. An empty variable is as
if it were not set.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.shares import DEFAULT_PLACES
from everstep.agent_domain.media_types import UPLOAD_TYPES
from everstep.agent_domain.nearest import nearest
from everstep.agent_domain.stream.channels import derived_secret
from everstep.runtime.secret_files import is_secret_file


def _split_words(value: object) -> object:
    """Split an environment variable that holds several values, separated by commas."""
    return (
        tuple(word for part in value.split(",") if (word := part.strip()))
        if isinstance(value, str)
        else value
    )


Days = Annotated[float, Field(gt=0, le=36_500)]
CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_words)]


def _clean_url(value: str) -> str:
    """Return a URL for links, without a slash at its end."""
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable, parts = False, urlsplit("")
    # Links are written in Markdown.
    if not is_usable or not value.isprintable() or any(each in value for each in " \\<>()\"'`?#"):
        how = "it has to be an http or https URL without a query, like https://agents.example"
        raise PydanticCustomError("public_url", "{how}", {"how": how})
    if "@" in parts.netloc:
        how = "it must not contain a user or a password: everyone who sees a link could read them"
        raise PydanticCustomError("public_url", "{how}", {"how": how})
    return value.rstrip("/")


PublicUrl = Annotated[str, AfterValidator(_clean_url)]


_PREFIX = "EVERSTEP_"
_CLIENT_VARIABLES = ("EVERSTEP_API_URL", "EVERSTEP_API_TOKEN")
"""The variables that only the commands read which use the HTTP API."""
_OF_KUBERNETES = re.compile(r"_SERVICE_|_PORT_\d")


class Settings(StrictModel, BaseSettings):
    """The settings of one installation."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        toml_file="everstep.toml",
        frozen=True,
        populate_by_name=True,
        # Compose files pass on variables without a value.
        env_ignore_empty=True,
    )

    data_dir: Path | None = Field(
        default=None, validation_alias=AliasChoices("EVERSTEP_DATA", "EVERSTEP_DATA_DIR", "data_dir")
    )
    """The data folder of `everstep up`. None: one for each project, in `~/.local/state/everstep`."""
    database_url: str | None = Field(
        default=None, validation_alias=AliasChoices("EVERSTEP_DATABASE_URL", "DATABASE_URL", "database_url")
    )
    """The PostgreSQL database: `postgresql://user:password@host/name`. `everstep up` has its own."""
    database_direct_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "EVERSTEP_DATABASE_DIRECT_URL", "DATABASE_DIRECT_URL", "database_direct_url"
        ),
    )
    """The URL of PostgreSQL itself, if `database_url` leads to a pooler: `everstep db upgrade` needs it."""
    database_prepared: Literal["auto", "on", "off"] = "auto"
    """Whether statements are prepared on PostgreSQL. `auto`: unless a pooler is in between that would forget
    them, such as PgBouncer before 1.21 in transaction mode."""
    database_replica_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "EVERSTEP_DATABASE_REPLICA_URL", "DATABASE_REPLICA_URL", "database_replica_url"
        ),
    )
    """The URL of a standby of the database by streaming replication, from which the API reads lists, searches
    and usage while it is up to date."""
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
    """The URL of Temporal's web UI, for links."""
    payload_key: str | None = None
    """32 random bytes in base64: with it, payloads are encrypted before Temporal stores them."""
    accept_plain_payloads: bool = False
    """Whether plain payloads are read although `payload_key` is set: needed while executions run that began
    without the key."""
    task_queue: str = "everstep"
    """The Temporal task queue of the workers. Installations that share a namespace need different ones."""
    build_id: str | None = None
    """The version of a worker's code. Executions stay on the version on which they began (PINNED). New
    executions begin on the version that is current in Temporal. None: workers have no version."""
    search_attributes: bool | None = None
    """Whether executions get Everstep's search attributes in Temporal. None: if the namespace has them
    when the process starts."""
    public_url: PublicUrl | None = None
    """The URL under which people reach this installation, such as `https://agents.example`, also with a path.
    Temporal's pages link to `{public_url}/console/executions/{id}`. `everstep up` uses its own address."""
    agents: CommaSeparated = ()
    """Where the agents are: folders, files, or `module:attribute`. Agents are read from nowhere else."""
    default_agent: str | None = None
    """The agent of requests that name none. None: the first one of `agents`."""
    related_types: CommaSeparated = ()
    """The values that `related_type` of sessions and messages may have."""
    context_policy: str | None = None
    """Your check of the contexts of sessions and messages: the `module:attribute` of an object, or of a class
    without arguments, with `async def check(self, context, caller)`."""
    attachments: str = "postgres"
    """Where the content of attached files is stored: `postgres`, the path of a folder that all processes
    share, or a bucket as `s3://bucket/prefix` (with the extra `s3`)."""
    attachment_max_bytes: int = Field(default=10_000_000, ge=1, le=100_000_000)
    """The largest size of an attached file in bytes."""
    attachment_types: CommaSeparated = UPLOAD_TYPES
    """The media types of files that users may upload. Models read images (png, jpeg, gif, webp), PDF and
    text; other files are described to them in words."""
    attachment_urls: Literal["on", "off"] = "off"
    """Whether users may send the URL of a file, which the API reads from public hosts."""
    webhook_private_addresses: Literal["on", "off"] = "off"
    """Whether webhooks may be at addresses of your own networks, and at http URLs. Otherwise only https URLs
    of public hosts are accepted."""
    http_host: str = "127.0.0.1"
    """The address on which the HTTP API listens; 0.0.0.0 for all interfaces."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """The port of the HTTP API; 0 for a free one."""
    http_connections: int = Field(default=2000, ge=1)
    """The largest number of connections to the HTTP API, those of its streams included; file descriptors may
    allow fewer."""
    http_connections_per_address: int = Field(default=500, ge=1)
    """The largest number of connections to the HTTP API from one address. Behind a proxy, all connections
    come from one address: raise it there."""
    log_format: Literal["text", "json"] = "text"
    """The format of the log of processes: lines for people, or one JSON object on each line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that processes log. `info` has a line for each request, and for each end of an
    execution."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """The port at which a worker serves its metrics and probes; 0 for a free one. None: it serves none. The
    API and the gateway serve theirs at their own ports."""
    metrics_host: str = "127.0.0.1"
    """The address of that port; 0.0.0.0 for all interfaces."""
    metrics_tenants: int = Field(default=50, ge=0, le=1000)
    """How many tenants have a label of their own in metrics; others are counted as `other`. 0 names none."""
    auth: Literal["on", "off"] = "on"
    """Whether requests to the HTTP API have to be authenticated. With `off`, every client has full access."""
    auth_secret: str | None = Field(default=None, min_length=32)
    """The secret that signs tokens (HS256), shared with their issuer."""
    auth_jwks_url: str | None = None
    """The URL at which an identity provider publishes the keys that sign its tokens."""
    auth_issuer: str | None = None
    """The required `iss` of a token. Must be set with `auth_jwks_url`; `any` accepts every issuer."""
    auth_audience: str | None = None
    """The required `aud` of a token. Must be set with `auth_jwks_url`; `any` accepts every audience."""
    console_client_id: str | None = None
    """The client of the console at the identity provider (`auth_issuer`), for signing in with OpenID Connect.
    Register `{public_url}/console/signed-in` as its redirect URI."""
    console_client_secret: str | None = None
    """The secret of that client. None: it is a public one."""
    console_scope: str = "openid profile email"
    """The scopes that the console requests from the identity provider."""
    approve_by_signal: Literal["on", "off"] = "off"
    """Whether services that have a Temporal client only may decide about calls. They send no token, so by
    default they decide only about calls whose approver is the role `temporal`."""
    allowed_origins: CommaSeparated = ()
    """The origins whose pages may use the API and the gateway in a browser, in addition to the own origin of
    each. If people use the console, the gateway needs the origin of the API."""
    allowed_hosts: CommaSeparated = ()
    """The names under which the API and the gateway are reached, in addition to those of the loopback
    interface: names, `*.example.com`, addresses, ranges of addresses, or `*` for any."""
    broadcast_key: str = "everstep"
    """The application key for clients that use Pusher's protocol."""
    broadcast_secret: str | None = Field(default=None, min_length=32)
    """The secret that signs channel subscriptions and authenticates publishers to gateways; derived from
    `auth_secret` if it is not set."""
    gateway_host: str = "127.0.0.1"
    """The address of the gateway, for subscribers and publishers; 0.0.0.0 for all interfaces."""
    gateway_port: int = Field(default=6001, ge=0, le=65535)
    """The port of the gateway; 0 for a free one."""
    gateway_port_is_shared: bool = False
    """Whether several gateways of this machine listen on the same port (SO_REUSEPORT)."""
    gateway_link_host: str | None = None
    """The host name by which workers and APIs reach this gateway. None: its host, or this machine's name."""
    gateway_link_port: int = Field(default=0, ge=0, le=65535)
    """The port for workers and APIs; 0 for a free one. They find it in the database."""
    gateway_connections_per_address: int = Field(default=2000, ge=1)
    """The largest number of connections to a gateway from one address. Behind a proxy, all subscribers come
    from one address: raise it there."""
    gateway_handshakes_per_second: float = Field(default=1000, gt=0)
    """The largest number of new connections in a second. Further clients are asked to come back later."""
    gateway_drain_seconds: float = Field(default=5.0, ge=0, le=600)
    """The time over which a stopping gateway sends its subscribers to others."""
    bus: Literal["direct", "nats"] = "direct"
    """How events reach gateways: `direct` connections of workers and APIs to every gateway, or over `nats`.
    The same for every process."""
    nats_url: str | None = None
    """The servers of NATS, with `bus = "nats"`: `nats://user:password@host:4222` or `tls://host:4222`;
    several of one cluster are separated by commas."""
    nats_credentials: Path | None = None
    """A file of credentials for NATS (`.creds`), instead of a user and a password in the URL."""
    gateway_url: str | None = None
    """The public URL of the gateway, such as wss://watch.example, which the API returns to its clients."""
    presets: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Model settings by name: `[presets.NAME]` in everstep.toml."""
    preset: str | None = None
    """The preset of agents that name none."""
    models_dir: Path | None = None
    """The folder for weights of local models. None: `~/.cache/everstep/models`."""
    local_model_url: str | None = None
    """A running server of the local model, as `http://:KEY@127.0.0.1:PORT/v1`. None: one is started when the
    model is first asked."""
    mcp: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """The MCP servers that agent files may name: `[mcp.NAME]` in everstep.toml."""
    error_details: bool = False
    """Whether viewers read the full text of errors. Otherwise they read the error's kind and a reference, by
    which the operator finds the text in the log and with `everstep show`."""
    keep_answers_days: Days = 1
    """The minimum lifetime of an `Idempotency-Key`: `everstep prune` removes older ones."""
    keep_uploads_days: Days = 1
    """How long an uploaded file waits for a message that uses it. A used file lives as long as its session or
    execution."""
    keep_sessions_days: Days | None = None
    """How long an unchanged session is kept. None: forever."""
    keep_executions_days: Days | None = None
    """How long an execution without a session is kept after its end. None: forever."""
    keep_envelopes_days: Days | None = None
    """How long envelopes are kept, for viewers that resume a stream. None: as long as the execution."""
    keep_deliveries_days: Days = 30
    """How long deliveries to webhooks are listed after they were delivered or given up."""
    cgroup: Path | None = None
    """A cgroup (version 2) for this worker only, in which each command of an agent gets a cgroup of its own.
    None: the one that systemd delegates (`Delegate=yes`), if there is one."""
    failpoint: str | None = None
    """For crash tests only: the point at which a worker dies, or a frame is lost."""
    worker_activities: int = Field(default=DEFAULT_PLACES, ge=1, le=100_000)
    """How many model calls and tool calls a worker runs at once. Tenants and users share their places fairly:
    one tenant takes eight of nine. Four times as many may wait in the worker for a place."""
    worker_workflow_tasks: int = Field(default=100, ge=2, le=10_000)
    """How many decisions of executions a worker makes at once. Each takes milliseconds."""
    worker_cached_executions: int = Field(default=1000, ge=1, le=1_000_000)
    """How many executions a worker keeps in memory, paused ones included. One that is not in memory is
    rebuilt from its history when it goes on."""
    worker_activity_polls: int = Field(default=5, ge=1, le=1000)
    """How many requests for model calls and tool calls a worker has open at Temporal."""
    worker_workflow_polls: int = Field(default=10, ge=2, le=1000)
    """The same for decisions of executions."""
    database_connections: int = Field(default=20, ge=2, le=10_000)
    """The largest number of connections to PostgreSQL of each process. The server's `max_connections` limits
    those of all processes together."""
    graceful_shutdown_seconds: float = 60.0
    """How long a stopping worker lets running model calls finish."""

    @property
    def gateway_secret(self) -> str | None:
        """The secret shared by the gateway, its publishers and the signer of channels, or None."""
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
        """Return the sources: arguments, environment, everstep.toml."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @classmethod
    def read(cls, **given: Any) -> "Settings":
        """Read the settings once; an error says in one sentence what is wrong."""
        try:
            return cls(**{key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            raise InvalidInput(f"the settings cannot be used: {faults(error)}") from None
        except ValueError as error:
            raise InvalidInput(f"everstep.toml cannot be read: {error}") from None

    @classmethod
    def variables(cls) -> set[str]:
        """Return the environment variables `EVERSTEP_...` that have an effect."""
        variables = set[str](_CLIENT_VARIABLES)
        for name, field in cls.model_fields.items():
            alias = field.validation_alias
            names = alias.choices if isinstance(alias, AliasChoices) else [f"{_PREFIX}{name.upper()}"]
            variables.update(each for each in names if isinstance(each, str) and each.startswith(_PREFIX))
        return variables

    def with_ports(self, **ports: int | None) -> "Settings":
        """Return the settings with other ports, if some are given."""
        return self.model_copy(update={name: port for name, port in ports.items() if port is not None})

    def require(self, name: str, how: str) -> str:
        """Return a required setting.

        Raises:
            InvalidInput: The setting is missing.
        """
        value = getattr(self, name)
        if not value:
            raise InvalidInput(f"{name} is not set: {how}")
        return value


def misspelled_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each environment variable that is probably a misspelled setting.

    Other unknown variables are ignored: programs beside this one may use the prefix for their own.
    """
    known = Settings.variables()
    for name in sorted(environ):
        is_other = not name.startswith(_PREFIX) or name in known or is_secret_file(name)
        # Kubernetes describes a service with a name like `everstep-gateway` to each container.
        if is_other or _OF_KUBERNETES.search(name) or environ[name].startswith("tcp://"):
            continue
        suffixes = [each.removeprefix(_PREFIX) for each in known]
        if near := nearest(name.removeprefix(_PREFIX), suffixes):
            yield f"{name} is not a setting and has no effect; did you mean '{_PREFIX}{near}'?"
