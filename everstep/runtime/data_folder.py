"""The data folder of a local installation, and how other processes find it.

By default the data are outside of the project, where its agents have no access:
`$XDG_STATE_HOME/everstep/<hash of the project's path>`. `.everstep/` in the project is used on request
(`--data .everstep`), and if an installation on this machine created it earlier.

Each data folder records its project, so that the user of a project that was moved or cloned can be shown
where its data are. A `.everstep/` that came with the project, such as in a cloned repository, is never used
without a request: write access to a database's files is enough to run code as its server.
"""

import hashlib
import os
import pwd
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.embedded import has_data, write_private
from everstep.runtime.git_repository import Repository
from everstep.runtime.local_model.weights import models_folder
from everstep.runtime.settings import Settings

API_URL_FILE: Final = "api-url"
"""The file in which a local installation stores the URL of its API."""

IN_PROJECT: Final = ".everstep"
"""The data folder inside a project, on request."""

RECORD: Final = "project.json"

MAX_RECORD_BYTES: Final = 64 * 1024

CONTAINER_SIGNS: Final = ("/.dockerenv", "/run/.containerenv")
"""Files by which Docker and Podman mark their containers."""

HOW_TO_NAME: Final = "name the data folder with --data or EVERSTEP_DATA"


class ProjectRecord(BaseModel, frozen=True):
    """The project of a data folder, stored in a file inside the data folder."""

    project: Path
    data: Path
    folder_id: str | None = None
    """Device and inode of the project's folder, which survive a rename."""
    repository: Repository = Repository()

    @classmethod
    def of(cls, project: Path, data: Path) -> Self:
        """Return the record of a project whose data are in this folder."""
        return cls(
            project=project, data=data, folder_id=_folder_id(project), repository=Repository.of(project)
        )

    @classmethod
    def read(cls, data: Path) -> Self | None:
        """Return the record in a data folder, or None if there is none that can be read."""
        try:
            with (data / RECORD).open("rb") as file:
                return cls.model_validate_json(file.read(MAX_RECORD_BYTES))
        except (OSError, ValidationError):
            return None

    def is_project_of(self, other: "ProjectRecord") -> bool:
        """Return whether both projects are copies of one repository, or one folder that was renamed."""
        if self.repository.is_same_as(other.repository):
            return True
        was_renamed = self.folder_id is not None and self.folder_id == other.folder_id
        return was_renamed and _folder_id(other.project) != self.folder_id


def data_folder(settings: Settings) -> Path:
    """Return the data folder of the project in the current folder.

    Raises:
        InvalidInput: None is set, and this user has no home folder for one.
    """
    if settings.data_dir is not None:
        return _absolute(settings.data_dir)
    project = _current_folder()
    usual = _usual_folder(project)
    if not has_data(usual) and _was_made_here(project / IN_PROJECT):
        return project / IN_PROJECT
    return usual


def known_data_folder(settings: Settings) -> Path | None:
    """Return the data folder, or None if there cannot be one."""
    try:
        return data_folder(settings)
    except InvalidInput:
        return None


def local_url(data: Path) -> str | None:
    """Return the URL of a local installation's API if it is served."""
    try:
        return (data / API_URL_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def private_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders with data of local installations, which agents must not reach, wherever they are.

    They are the data folder of this project, those of this user's other projects, the folder of the socket
    to this process's database, that of attached files, which has those of all tenants, and that of weights.
    """
    folders = [known_data_folder(settings), _folder_of_all(os.environ)]
    if settings.data_dir is None:
        with suppress(InvalidInput):
            folders.append(_current_folder() / IN_PROJECT)
    folders += [*_socket_folders(settings), attachments_folder(settings), models_folder(settings.models_dir)]
    return tuple(dict.fromkeys(each for each in folders if each is not None))


def attachments_folder(settings: Settings) -> Path | None:
    """Return the folder of attached files; None if another store has them."""
    folder = Path(settings.attachments).expanduser()
    return folder if folder.is_absolute() else None


def record_project(data: Path) -> None:
    """Record the current project in a data folder, unless the recorded project still exists."""
    known = ProjectRecord.read(data)
    if known and known.data == data and known.project.is_dir():
        return
    record = ProjectRecord.of(_current_folder(), data)
    write_private(data / RECORD, record.model_dump_json(indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class DataFolderChoice:
    """The data folder that a start uses, and notices for its user."""

    folder: Path
    is_new: bool
    remarks: tuple[str, ...] = ()


def find_data_folder(settings: Settings) -> DataFolderChoice:
    """Find the data folder before it is created, and related folders."""
    folder = data_folder(settings)
    is_new = not has_data(folder)
    if settings.data_dir is not None:
        return DataFolderChoice(folder, is_new)
    return DataFolderChoice(folder, is_new, tuple(_remarks(folder, is_new)))


def _remarks(folder: Path, is_new: bool) -> Iterator[str]:
    project = _current_folder()
    inside = project / IN_PROJECT
    if folder == inside:
        usual = _usual_folder(project)
        yield (
            f"The data of this project are in {inside}, inside the project. To keep them out of reach of "
            f"its agents, stop it and: {_move(inside, usual)}"
        )
        return
    if is_new:
        yield (
            f"This project has no data yet. Its data will be stored in {folder} "
            "(--data and EVERSTEP_DATA name another folder)."
        )
        for other in _data_of_same_project(project, folder):
            yield (
                f"The same project has data in {other.data}, from {other.project}. "
                f"To use them: everstep --data {shlex.quote(str(other.data))} up"
            )
    if has_data(inside):
        yield (
            f"{inside} holds data that were not created here, and is not used. "
            f"If they are yours: everstep --data {IN_PROJECT} up"
        )
    if is_in_container() and _goes_with_container(folder):
        yield (
            f"This is a container, and {folder} is deleted with it. To keep the data, mount a volume and "
            f"{HOW_TO_NAME}."
        )


def _move(folder: Path, to: Path) -> str:
    return f"mkdir -p {shlex.quote(str(to.parent))} && mv {shlex.quote(str(folder))} {shlex.quote(str(to))}"


def is_in_container(
    signs: tuple[str, ...] = CONTAINER_SIGNS, environment: Mapping[str, str] = os.environ
) -> bool:
    """Return whether this process runs in a container."""
    return any(map(os.path.exists, signs)) or "KUBERNETES_SERVICE_HOST" in environment


def _goes_with_container(folder: Path) -> bool:
    """Return whether the folder is, or will be, on the container's own file system and not on a volume."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return there.stat().st_dev == Path("/").stat().st_dev


def _data_of_same_project(project: Path, folder: Path) -> Iterator[ProjectRecord]:
    ours = ProjectRecord.of(project, folder)
    for data in sorted(folder.parent.glob("*")):
        theirs = ProjectRecord.read(data) if data != folder and has_data(data) else None
        # The folder may have been moved after its record was written.
        if theirs and ours.is_project_of(theirs):
            yield theirs.model_copy(update={"data": data})


def _was_made_here(folder: Path) -> bool:
    """Return whether an installation on this machine created its data in this very place.

    The path is recorded inside, and the author of a prepared repository cannot know this user's path.
    """
    if not has_data(folder) or folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return False
    if (record := ProjectRecord.read(folder)) is not None:
        return record.data == folder
    try:
        # Earlier releases kept no record but started PostgreSQL with this path.
        command = (folder / "postgres" / "postmaster.opts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return f'"{folder / "postgres"}"' in command


def _usual_folder(project: Path) -> Path:
    home = _folder_of_all(os.environ)
    if home is None:
        raise InvalidInput(f"this user has no home folder for the data: {HOW_TO_NAME}")
    return home / hashlib.sha256(os.fsencode(project)).hexdigest()[:16]


def _folder_of_all(environment: Mapping[str, str]) -> Path | None:
    """Return the parent of all projects' data folders, or None without a home folder."""
    state = Path(environment.get("XDG_STATE_HOME", ""))
    # The XDG specification requires a relative path to be ignored.
    if state.is_absolute():
        return state / "everstep"
    try:
        home = Path(environment.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
    return home / ".local" / "state" / "everstep" if home.is_absolute() else None


def _socket_folders(settings: Settings) -> Iterator[Path]:
    try:
        hosts = make_url(settings.database_url or "").query.get("host", ())
    except ArgumentError:
        return
    for host in (hosts,) if isinstance(hosts, str) else hosts:
        if host.startswith("/"):
            yield Path(host)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidInput("the current folder is gone; change to another one") from None


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput(f"{str(path)!r} cannot be a data folder: {error}; {HOW_TO_NAME}") from None


def _folder_id(folder: Path) -> str | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"
