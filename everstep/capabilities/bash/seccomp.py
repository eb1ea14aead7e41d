"""The system calls that a command may make, as a BPF program that the kernel runs before each call.

It refuses calls that reach into other processes, the kernel or its configuration, that make namespaces, or
that take memory that no limit counts. A refused call fails with an error, so that programs fall back or
report it; no process is killed. Calls newer than this table fail as on an older kernel.

Files with set-user-ID bits cannot be made either: files that a command leaves in the base directory belong to
the worker's user, and would give that user's rights to every user of the machine.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterable
from functools import cache
from typing import Final, TypeAlias

Instruction: TypeAlias = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand."""

# Operations of classic BPF.
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
# Offsets in the kernel's `seccomp_data`.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

FIRST_UNKNOWN: Final = 463
"""All calls below have been reviewed. The numbers of x32 are far above."""

MACHINES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_REFUSED: Final = """
ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; process_madvise 440 440; kcmp 312 272;
pidfd_getfd 438 438; mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51; move_mount 429 429;
open_tree 428 428; fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433; mount_setattr 442 442;
unshare 272 97; setns 308 268; bpf 321 280; perf_event_open 298 241; userfaultfd 323 282; keyctl 250 219;
add_key 248 217; request_key 249 218; kexec_load 246 104; kexec_file_load 320 294; init_module 175 105;
finit_module 313 273; delete_module 176 106; create_module 174 -; query_module 178 -; get_kernel_syms 177 -;
reboot 169 142; swapon 167 224; swapoff 168 225; acct 163 89; quotactl 179 60; quotactl_fd 443 443;
syslog 103 116; settimeofday 164 170; clock_settime 227 112; adjtimex 159 171; clock_adjtime 305 266;
sethostname 170 161; setdomainname 171 162; iopl 172 -; ioperm 173 -; modify_ldt 154 -; uselib 134 -;
ustat 136 -; sysfs 139 -; sysctl 156 -; nfsservctl 180 42; lookup_dcookie 212 18; vhangup 153 58;
open_by_handle_at 304 265; name_to_handle_at 303 264; fanotify_init 300 262; fanotify_mark 301 263;
mbind 237 235; set_mempolicy 238 237; migrate_pages 256 238; move_pages 279 239;
set_mempolicy_home_node 450 450
"""
"""Name, number on x86_64, number on aarch64. These calls fail with EPERM."""

_ABSENT: Final = """
clone3 435 435; openat2 437 437; io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427;
io_setup 206 0; memfd_create 319 279; memfd_secret 447 447; shmget 29 194; msgget 68 186;
semget 64 190; vmsplice 278 75
"""
"""These calls fail with ENOSYS, and programs then use older ones.

Their arguments cannot be inspected, or they take memory that belongs to no process and to no file system with
a size. `io_setup` takes events that are counted for the whole machine.
"""

_EXHAUSTED: Final = "inotify_init 253 -; inotify_init1 294 26"
"""These calls fail with EMFILE, and programs then poll.

The kernel counts instances and watches for each user, so a command would take those of the worker's user.
"""

_RESERVES: Final = "fallocate 285 47"
"""Takes disk space without writing, faster than it can be polled. Libraries write instead."""

_NEW_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make namespaces."""

_SET_ID_BITS: Final = 0o6000
_CREATES: Final = 0o100 | 0o20000000  # O_CREAT and what is special about O_TMPFILE
# These insert characters into a terminal as if they were typed; the last one changes the line discipline.
_TERMINAL_TRICKS: Final = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
# Reserve space on a disk, as `fallocate` does.
_DISK_TRICKS: Final = (0x40305828, 0x4030582A, 0x40305839)  # FS_IOC_RESVSP, RESVSP64, ZERO_RANGE
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0xFFFFFFFF)  # the usual ones, and the question which it is
_TYPE: Final = 0xF  # of a socket; what is above are flags
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_PROTOCOLS: Final = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6)


@cache
def program(machine: str | None = None) -> bytes:
    """The filter for this machine, or for another `platform.machine()`."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ValueError(f"there is no table of system calls for {machine}; use x86_64 or aarch64")
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, MACHINES[machine]),
        _fail(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, FIRST_UNKNOWN),
        _fail(errno.ENOSYS),
    ]
    column = tuple(MACHINES).index(machine)
    for number, block in _rules(column):
        instructions += [(_EQUAL, 0, len(block), number), *block]
    instructions.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _rules(column: int) -> Iterable[tuple[int, list[Instruction]]]:
    """The instructions for the call of each number."""
    yield from ((number, [_fail(errno.EPERM)]) for number in _numbers(_REFUSED, column))
    yield from ((number, [_fail(errno.ENOSYS)]) for number in _numbers(_ABSENT, column))
    yield from ((number, [_fail(errno.EOPNOTSUPP)]) for number in _numbers(_RESERVES, column))
    yield from ((number, [_fail(errno.EMFILE)]) for number in _numbers(_EXHAUSTED, column))
    for words, block in _CHECKED:
        yield from ((number, block) for number in _numbers(words, column))


def _numbers(table: str, column: int) -> list[int]:
    rows = (row.split() for row in table.split(";"))
    return [int(row[1 + column]) for row in rows if row[1 + column] != "-"]


def _fail(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _argument(index: int) -> Instruction:
    """Load the lower half of an argument. The kernel uses no more of the arguments that are checked here."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


_END: Final[Instruction] = (_RETURN, 0, 0, ALLOW)


def _refuse_bits(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), _fail(errno.EPERM), _END]


def _refuse_bits_of_new_files(flags: int, mode: int) -> list[Instruction]:
    """The mode argument is undefined unless the call may create a file."""
    return [_argument(flags), (_ANY_BIT, 1, 0, _CREATES), _END, *_refuse_bits(mode, _SET_ID_BITS)]


def _refuse_values(index: int, values: Iterable[int]) -> list[Instruction]:
    tests = [each for value in values for each in ((_EQUAL, 0, 1, value), _fail(errno.EPERM))]
    return [_argument(index), *tests, _END]


def _require_values(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_argument(index), *tests, _fail(otherwise)]


def _sockets() -> list[Instruction]:
    """Internet sockets, and of netlink the one that lists addresses.

    No local sockets, with a network or without: one with a path is reachable from any network namespace.
    """
    internet = [
        _argument(1),
        (_AND, 0, 0, _TYPE),
        (_EQUAL, 3, 0, socket.SOCK_STREAM),
        (_EQUAL, 2, 0, socket.SOCK_DGRAM),
        (_EQUAL, 1, 0, socket.SOCK_RAW),  # which needs rights that a command does not have
        _fail(errno.ESOCKTNOSUPPORT),
        *_require_values(2, _PROTOCOLS, errno.EPROTONOSUPPORT),
        _END,
    ]
    routes = [*_require_values(2, (0,), errno.EAFNOSUPPORT), _END]
    return [
        _argument(0),
        (_EQUAL, 0, 1, _AF_UNIX),
        _fail(errno.EACCES),
        (_EQUAL, 0, len(routes), _AF_NETLINK),
        *routes,
        (_EQUAL, 2, 0, _AF_INET),
        (_EQUAL, 1, 0, _AF_INET6),
        _fail(errno.EAFNOSUPPORT),
        *internet,
    ]


def _pairs() -> list[Instruction]:
    """Connected local pairs, but no datagram sockets: those can send to any path."""
    return [
        _argument(1),
        (_AND, 0, 0, _TYPE),
        (_EQUAL, 1, 0, socket.SOCK_DGRAM),
        (_EQUAL, 0, 1, socket.SOCK_RAW),  # the same for local sockets
        _fail(errno.EACCES),
        *_require_values(0, (_AF_UNIX,), errno.EAFNOSUPPORT),
        _END,
    ]


def _buffers() -> list[Instruction]:
    """Buffer sizes of a socket cannot be changed, without an error: no limit counts the memory in them."""
    names = (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33)  # and the same for who may pass the limits
    ignored = [each for name in names for each in ((_EQUAL, 0, 1, name), _fail(0))]
    return [_argument(1), (_EQUAL, 1, 0, socket.SOL_SOCKET), _END, _argument(2), *ignored, _END]


_CHECKED: Final = [
    ("setsockopt 54 208", _buffers()),
    ("clone 56 220", _refuse_bits(0, _NEW_NAMESPACES)),
    ("chmod 90 -; fchmod 91 52; creat 85 -; mknod 133 -", _refuse_bits(1, _SET_ID_BITS)),
    ("fchmodat 268 53; fchmodat2 452 452; mknodat 259 33", _refuse_bits(2, _SET_ID_BITS)),
    ("open 2 -", _refuse_bits_of_new_files(1, 2)),
    ("openat 257 56", _refuse_bits_of_new_files(2, 3)),
    ("ioctl 16 29", _refuse_values(1, _TERMINAL_TRICKS + _DISK_TRICKS)),
    ("personality 135 92", [*_require_values(0, _PERSONALITIES, errno.EPERM), _END]),
    ("socket 41 198", _sockets()),
    ("socketpair 53 199", _pairs()),
]
