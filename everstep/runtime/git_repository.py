"""The repository of a folder, found by calling git without running anything from the folder."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel

GIT_SECONDS: Final = 3.0
"""A repository whose history takes longer to walk is identified by its remote only."""

ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # Missing objects of a partial clone would be fetched by a program that the clone's configuration names.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
}

SAFE_OPTIONS: Final = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "--no-pager")


class Repository(BaseModel, frozen=True):
    """The identity that copies of a repository share."""

    root_commit: str | None = None
    remote: str | None = None
    """Host and path of `origin`, without scheme and credentials."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the repository of a folder, or an empty one."""
        roots = _git(folder, "rev-list", "--max-parents=0", "HEAD")
        remote = _git(folder, "config", "--get", "remote.origin.url")
        return cls(root_commit=roots.split()[-1] if roots else None, remote=plain_remote(remote))

    def is_same_as(self, other: "Repository") -> bool:
        """Return whether both have a root commit or a remote in common."""
        return (self.root_commit is not None and self.root_commit == other.root_commit) or (
            self.remote is not None and self.remote == other.remote
        )


def plain_remote(url: str) -> str | None:
    """Return host and path of a remote, for any scheme: `github.com/owner/name`."""
    rest = re.sub(r"^[a-z+]+://", "", url.strip())
    rest = rest.rpartition("@")[2] if "@" in rest.partition("/")[0] else rest
    host, colon, path = rest.partition(":")
    if colon and "/" not in host and not path.partition("/")[0].isdigit():
        rest = f"{host}/{path}"
    return rest.removesuffix("/").removesuffix(".git") or None


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 -- fixed arguments, no shell
            ["git", *SAFE_OPTIONS, *arguments],  # noqa: S607 -- the user's git
            cwd=folder,
            # The system's path first: an agent may be able to write to a folder of the PATH.
            env={"PATH": f"{os.defpath}:{os.environ.get('PATH', '')}", **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
            check=True,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
