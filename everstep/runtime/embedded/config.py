"""Configuration of the embedded services, and the state that they publish."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from everstep.runtime.embedded.folder import write_private

SearchAttributeType = Literal["Text", "Keyword", "Int", "Double", "Bool", "Datetime", "KeywordList"]


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """Data folder, ports and options of the embedded services."""

    data: Path
    """The directory of all data; it is created if it does not exist."""
    temporal_port: int = 7233
    """If it is 0 or busy, a free port is used, preferably that of the previous start."""
    ui_port: int = 8233
    """As `temporal_port`, for Temporal's web UI."""
    postgres_port: int | None = None
    """None: PostgreSQL listens only on its unix socket. Otherwise as `temporal_port`."""
    search_attributes: Mapping[str, SearchAttributeType] = field(
        default_factory=dict[str, SearchAttributeType]
    )
    """Registered in the namespace `default`, even if the data directory predates them."""
    dynamic_config: Mapping[str, object] = field(default_factory=dict[str, object])
    """Temporal's dynamic configuration, with JSON values."""
    temporal_pragmas: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pragmas of SQLite for Temporal's file, beside those that keep it safe."""
    postgres_settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings as in postgresql.conf; others have PostgreSQL's safe defaults."""
    start_timeout: float = 60.0
    """Seconds after which a service that does not answer has failed to start."""
    stop_timeout: float = 10.0
    """Seconds after which a service that was asked to stop is killed."""

    @property
    def logs(self) -> Path:
        """The folder of the services' logs, including those of the previous start."""
        return self.data / "logs"


class EmbeddedState(BaseModel, frozen=True):
    """The addresses of the services, for other processes and for the next start, which reuses the ports."""

    pid: int
    database_url: str
    temporal_address: str
    ui_url: str
    temporal_port: int
    ui_port: int
    postgres_port: int | None = None

    @classmethod
    def read(cls, data: Path) -> "EmbeddedState | None":
        """Return the state that was stored last, maybe by a process that has ended."""
        try:
            return cls.model_validate_json(_file(data).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, data: Path) -> None:
        """Replace the stored state. It contains the database's password, so only its owner may read it."""
        write_private(_file(data), self.model_dump_json(indent=2) + "\n")


def _file(data: Path) -> Path:
    return data / "services.json"
