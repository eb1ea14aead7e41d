"""What the embedded services are told, and what they tell others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from everstep.runtime.embedded.folder import write_private

SearchAttributeType = Literal["Text", "Keyword", "Int", "Double", "Bool", "Datetime", "KeywordList"]


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """Where the embedded services keep their data and where they listen."""

    data: Path
    """Everything is kept below this directory; it is made when it does not exist."""
    temporal_port: int = 7233
    """0, or a port that is busy, means a free one: the one used last time, when it is still free."""
    ui_port: int = 8233
    """As `temporal_port`, for Temporal's web UI."""
    postgres_port: int | None = None
    """None: PostgreSQL listens on its unix socket only. Else as `temporal_port`."""
    search_attributes: Mapping[str, SearchAttributeType] = field(
        default_factory=dict[str, SearchAttributeType]
    )
    """Registered in the namespace `default`, also when the data directory is older than they are."""
    dynamic_config: Mapping[str, object] = field(default_factory=dict[str, object])
    """Temporal's dynamic configuration; values are what JSON can say."""
    postgres_settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """As in postgresql.conf; what is not named has PostgreSQL's safe default."""
    start_timeout: float = 60.0
    """Seconds after which a service that does not answer has failed to start."""
    stop_timeout: float = 10.0
    """Seconds after which a service that was asked to stop is killed."""

    @property
    def logs(self) -> Path:
        """Where each service has its log, and the log of the start before."""
        return self.data / "logs"


class EmbeddedState(BaseModel, frozen=True):
    """Where the services listen: written for other processes, and for the next start to keep the ports."""

    pid: int
    database_url: str
    temporal_address: str
    ui_url: str
    temporal_port: int
    ui_port: int
    postgres_port: int | None = None

    @classmethod
    def read(cls, data: Path) -> "EmbeddedState | None":
        """What was written last, by a process that may be gone by now."""
        try:
            return cls.model_validate_json(_file(data).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, data: Path) -> None:
        """Replace what was written last; it has the database's password, so only its owner may read it."""
        write_private(_file(data), self.model_dump_json(indent=2) + "\n")


def _file(data: Path) -> Path:
    return data / "services.json"
