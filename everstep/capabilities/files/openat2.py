"""`openat2(2)`: Linux opens a path so that no part of it leads out of a directory.

Python has no function for it yet. Kernels before 5.6 do not have it, and some sandboxes forbid it; then
`is_available` is false, and `enclosure` resolves paths step by step.
"""

import ctypes
import errno
import os
import sys
from functools import cache
from typing import Any

_NUMBER = 437
"""The same on every architecture: system calls this new have one number everywhere."""

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def is_available() -> bool:
    """Whether this machine has it, detected by a call."""
    if not sys.platform.startswith("linux"):
        return False
    here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(open_beneath(here, ".", os.O_PATH))
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:
            return False
        raise
    finally:
        os.close(here)
    return True


@cache
def _syscall() -> Any:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.POINTER(_OpenHow),
        ctypes.c_size_t,
    )
    return function


def open_beneath(directory: int, path: str, flags: int) -> int:
    """Open a path that starts in the directory and stays beneath it, symlinks included."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    while True:
        opened = _syscall()(_NUMBER, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if opened >= 0:
            return opened
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)
