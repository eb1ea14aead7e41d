"""Permissions for root: PostgreSQL refuses to run as root, so it runs as another user.

That user must reach the programs, which it cannot below `/root` (the data directory needs no grant, because
the server is started in it). The smallest sufficient grant is made: only this user may pass through the
directories on the way, without listing or reading them. Without access control lists, all users may.
"""

import errno
import logging
import os
import pwd
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everstep.runtime.embedded.errors import EmbeddedError

logger = logging.getLogger(__name__)

CANDIDATES: Final = ("postgres", "nobody")
"""Users for PostgreSQL under root, in order of preference. All systems have the second one."""

# The kernel's form of an access control list (linux/posix_acl_xattr.h): a version, then entries in order.
XATTR: Final = "system.posix_acl_access"
VERSION: Final = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID: Final = 0xFFFFFFFF
SEARCH: Final = 1

AclEntry = tuple[int, int, int]
"""The tag, the permissions, and the id for tags that have one."""


@dataclass(frozen=True, slots=True)
class User:
    """An account of this machine."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, entry: pwd.struct_passwd) -> "User":
        """Return the account of an entry of the password database."""
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)


def postgres_user(*owned: Path) -> User | None:
    """Return the user that PostgreSQL has to run as, or None for the current user, unless that is root.

    The owner of existing data is preferred.
    """
    if os.geteuid() != 0:
        if not _has_name(os.geteuid()):
            raise EmbeddedError(
                f"user id {os.geteuid()} is not in the password database, and PostgreSQL's initdb refuses "
                "to run without a user name; run as a user that has one"
            )
        return None
    owners = [path.stat().st_uid for path in owned if path.exists()]
    for uid in owners:
        if uid != 0 and _has_name(uid):
            return User.of(pwd.getpwuid(uid))
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in CANDIDATES:
        if name in known and known[name].pw_uid != 0:
            return User.of(known[name])
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and none of the users {', '.join(CANDIDATES)} exists; add one"
    )


def own(path: Path, user: User | None) -> None:
    """Make a directory private to the user; if another user owns it, its whole content changes owner."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    # Only then: in a directory of its own, the user could place links that mislead root.
    if user and path.stat().st_uid != user.uid:
        for each in (*path.rglob("*"), path):
            os.chown(each, user.uid, user.gid, follow_symlinks=False)


def write_for(path: Path, text: str, user: User | None) -> None:
    """Replace a file in a directory of the user, who alone may read it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    # Always a new file, even if the path exists: the user could have placed a link that misleads root.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        if user:
            os.fchown(descriptor, user.uid, user.gid)
        file.write(text)
    new.replace(path)


def let_reach(path: Path, user: User | None) -> None:
    """Allow the user to pass through every directory above the path."""
    if user:
        for folder in path.resolve().parents:
            if not _can_search(folder, user):
                _let_search(folder, user)


def let_read(trees: Iterable[Path], user: User | None) -> None:
    """Make an installation readable for all users, as it is unless it was installed under a strict umask."""
    if user:
        for tree in trees:
            if not tree.exists() or tree.stat().st_mode & stat.S_IXOTH:
                continue
            # The top comes last: while it is closed, the work is known to be unfinished.
            for path in (*tree.rglob("*"), tree):
                mode = path.stat().st_mode
                wanted = mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0)
                if wanted != mode:
                    path.chmod(stat.S_IMODE(wanted))


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _can_search(folder: Path, user: User) -> bool:
    """Return the kernel's decision for a user without further groups."""
    status = folder.stat()
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    entries = _acl(folder, status.st_mode)
    mask = next((allowed for tag, allowed, _ in entries if tag == MASK), SEARCH)
    for tag, allowed, uid in entries:
        if tag == USER and uid == user.uid:
            return bool(allowed & mask & SEARCH)
    if status.st_gid == user.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _let_search(folder: Path, user: User) -> None:
    try:
        os.setxattr(folder, XATTR, b"".join(_pack(_with_search(_acl(folder, folder.stat().st_mode), user))))
    except (AttributeError, OSError) as error:
        # AttributeError: Python supports such lists on Linux only.
        if isinstance(error, OSError) and error.errno != errno.ENOTSUP:
            raise EmbeddedError(
                f"PostgreSQL runs as user {user.name}, who cannot pass through {folder}: {error}"
            ) from error
        folder.chmod(stat.S_IMODE(folder.stat().st_mode | stat.S_IXOTH))
        logger.warning("let all users pass through %s, so that PostgreSQL can as %s", folder, user.name)
    else:
        logger.info("let user %s pass through %s, so that PostgreSQL can", user.name, folder)


def _with_search(entries: list[AclEntry], user: User) -> list[AclEntry]:
    """Return the list with search permission for the user, and with no more permissions for others."""
    group = next(allowed for tag, allowed, _ in entries if tag == GROUP_OBJ)
    mask = next((allowed for tag, allowed, _ in entries if tag == MASK), group)
    kept = [
        # The mask is about to widen, so the permissions that it masked are removed from their entries.
        (tag, allowed & mask if tag in {USER, GROUP_OBJ, GROUP} else allowed, number)
        for tag, allowed, number in entries
        if tag != MASK and (tag, number) != (USER, user.uid)
    ]
    had = next((allowed & mask for tag, allowed, uid in entries if (tag, uid) == (USER, user.uid)), 0)
    return sorted(
        [*kept, (USER, had | SEARCH, user.uid), (MASK, mask | SEARCH, NO_ID)],
        key=lambda entry: (entry[0], entry[2]),
    )


def _acl(folder: Path, mode: int) -> list[AclEntry]:
    """Return a directory's list, or the equivalent of its mode if it has none."""
    try:
        packed = os.getxattr(folder, XATTR)
    except (AttributeError, OSError):
        return [
            (USER_OBJ, mode >> 6 & 7, NO_ID),
            (GROUP_OBJ, mode >> 3 & 7, NO_ID),
            (OTHER, mode & 7, NO_ID),
        ]
    return list(struct.iter_unpack("<HHI", packed[4:]))


def _pack(entries: Iterable[AclEntry]) -> Iterator[bytes]:
    yield struct.pack("<I", VERSION)
    for entry in entries:
        yield struct.pack("<HHI", *entry)
