"""The parts of a git directory that run code when its owner uses git: configuration, hooks, attributes.

A git directory is recognised by its contents, as git itself does, so its name does not matter. A linked
worktree or a submodule has a `.git` file that points to its git directory.
"""

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAIN: Final = frozenset({"HEAD", "objects", "refs"})
LINKED: Final = frozenset({"HEAD", "commondir"})
NESTED: Final = ("modules", "worktrees")
"""Where a git directory keeps those of its submodules and of its linked worktrees."""

HERE: Final = ".\n"
"""A `commondir` with this text has no effect."""
NOTHING: Final = "\n"
"""A configuration or attributes file with this text has no effect."""

MAX_CONFIG: Final = 1024 * 1024

_CODE: Final = frozenset({"hooks", "info", "commondir", "gitdir", *NESTED})
_REFERENCE: Final = re.compile(
    r'(?:^|\])\s*(hookspath|path)\s*=\s*"?([^"\n;#]+)', re.IGNORECASE | re.MULTILINE
)
_MAX_INCLUDED: Final = 100


def is_code(name: str) -> bool:
    """Whether an entry of a git directory can make git run code."""
    folded = name.casefold()
    return folded in _CODE or folded.startswith("config")


def looks_like_git(names: Collection[str]) -> bool:
    """Whether a directory with these entries is a git directory."""
    return "HEAD" in names and ("commondir" in names or ("objects" in names and "refs" in names))


def is_git_directory(folder: str) -> bool:
    """Whether an existing directory is a git directory."""
    return os.path.lexists(f"{folder}/HEAD") and (
        os.path.lexists(f"{folder}/commondir")
        or (os.path.lexists(f"{folder}/objects") and os.path.lexists(f"{folder}/refs"))
    )


def would_complete(folder: str, name: str) -> bool:
    """Whether a directory becomes a git directory once it has an entry of this name."""
    if os.path.lexists(f"{folder}/{name}"):
        return False
    return any(
        name in whole and all(os.path.lexists(f"{folder}/{other}") for other in whole - {name})
        for whole in (MAIN, LINKED)
    )


def is_linked(folder: str) -> bool:
    """Whether the configuration and hooks are in another git directory."""
    text = text_of(f"{folder}/commondir")
    return text is not None and text != HERE


def text_of(path: str) -> str | None:
    """The content of a small regular file, read without blocking; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.pread(descriptor, MAX_CONFIG, 0).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class GitParts:
    """The parts of a git directory to protect, so that the rest can be written."""

    read_only: tuple[str, ...]
    missing_folders: tuple[str, ...]
    """Names that do not exist, and have to stay free."""
    missing_files: Mapping[str, str]
    """The same for files, with a text without effect."""
    nested: tuple[str, ...]
    """Git directories inside, each with its own parts."""


def parts_of(folder: str) -> GitParts:
    """Find the parts of a git directory.

    Raises:
        OSError: It cannot be read, or one of the parts is a link.
    """
    names = os.listdir(folder)
    linked = is_linked(folder)
    present = [name for name in names if is_code(name) and name != "info" and not name.endswith(".lock")]
    if not linked and "commondir" in present:
        present.remove("commondir")
    if links := [name for name in (*present, "info") if os.path.islink(f"{folder}/{name}")]:
        raise OSError(errno.ELOOP, "a link, which could be replaced", links[0])
    files = ["config.worktree"] if linked else ["config", "config.worktree"]
    folders = [] if linked else ["hooks", "info"]
    missing = {f"{folder}/{name}": NOTHING for name in files if name not in names}
    attributes = f"{folder}/info/attributes"
    if not linked:
        missing[f"{folder}/commondir"] = HERE
        if "info" in names and not os.path.lexists(attributes):
            missing[attributes] = NOTHING
    return GitParts(
        (*(f"{folder}/{name}" for name in present), attributes),
        tuple(f"{folder}/{name}" for name in folders if name not in names),
        missing,
        tuple(inner for name in NESTED for inner in _inside(f"{folder}/{name}")),
    )


def _inside(folder: str, depth: int = 4) -> Iterator[str]:
    """The git directories inside. Names of submodules may have slashes."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        inner = f"{folder}/{name}"
        if os.path.islink(inner) or not os.path.isdir(inner):
            continue
        if is_git_directory(inner):
            yield inner
        elif depth:
            yield from _inside(inner, depth - 1)


@dataclass(frozen=True, slots=True)
class ReferencedPath:
    """A path that a configuration refers to: an included file, or a folder of hooks."""

    path: str
    is_file: bool


def referenced_paths(folder: str, worktree: str | None = None) -> Iterator[ReferencedPath]:
    """The hooks and configuration files of a git directory that are outside of it.

    They may be among the project's files, and some of them may not exist. Included files are searched in the
    same way.
    """
    start = worktree or os.path.dirname(folder)
    if os.path.islink(f"{folder}/hooks"):
        yield ReferencedPath(os.path.realpath(f"{folder}/hooks"), is_file=False)
    if os.path.islink(f"{folder}/config"):
        yield ReferencedPath(os.path.realpath(f"{folder}/config"), is_file=True)
    configs = {f"{folder}/config", f"{folder}/config.worktree", *_user_configs()}
    pending = [*configs]
    while pending and len(configs) < _MAX_INCLUDED:
        config = pending.pop()
        for key, value in _REFERENCE.findall(text_of(config) or ""):
            is_hooks = key.casefold() == "hookspath"
            above = start if is_hooks else os.path.dirname(os.path.realpath(config))
            path = os.path.realpath(os.path.join(above, os.path.expanduser(value.strip())))
            yield ReferencedPath(path, is_file=not is_hooks)
            if not is_hooks and path not in configs:
                configs.add(path)
                pending.append(path)


def _user_configs() -> Iterator[str]:
    home = os.path.expanduser("~")
    yield f"{home}/.gitconfig"
    yield f"{os.environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/git/config"


def paths_referenced_from(folder: str) -> Iterator[ReferencedPath]:
    """The same for the repository that git finds from a folder, in it or above."""
    above = folder
    while not os.path.lexists(f"{above}/.git"):
        if above == os.path.dirname(above):
            return
        above = os.path.dirname(above)
    yield from referenced_paths(common_directory(git_directory(above)), above)


def git_directory(folder: str) -> str:
    """The git directory of a folder: its `.git`, or the target of that file."""
    link = f"{folder}/.git"
    text = text_of(link) or ""
    if text.startswith("gitdir:"):
        return os.path.realpath(os.path.join(folder, text.removeprefix("gitdir:").strip()))
    return os.path.realpath(link)


def common_directory(folder: str) -> str:
    """The git directory that holds the configuration of this one."""
    text = text_of(f"{folder}/commondir")
    return folder if text is None else os.path.realpath(os.path.join(folder, text.strip()))


def linked_git_directory(base_dir: str) -> str | None:
    """The git directory outside of a base directory that the `.git` file there points to.

    The git directory has to name the base directory, too, and a linked worktree's has to be inside of its
    common directory. Otherwise an agent could write a `.git` file that opens another directory.
    """
    link = f"{base_dir}/.git"
    if os.path.islink(link) or not (text_of(link) or "").startswith("gitdir:"):
        return None
    folder = git_directory(base_dir)
    if not is_git_directory(folder) or not _points_back_to(folder, base_dir):
        return None
    common = common_directory(folder)
    is_whole = is_git_directory(common) and (
        folder == common or os.path.dirname(folder) == os.path.join(common, "worktrees")
    )
    return common if is_whole else None


def _points_back_to(folder: str, base_dir: str) -> bool:
    back = text_of(f"{folder}/gitdir")
    if back is None:
        config = text_of(f"{folder}/config") or ""
        match = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", config, re.MULTILINE)
        return bool(match) and os.path.realpath(os.path.join(folder, match[1])) == base_dir
    return os.path.realpath(os.path.join(folder, back.strip())) == f"{base_dir}/.git"
