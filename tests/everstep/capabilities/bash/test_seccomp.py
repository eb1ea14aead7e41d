"""The seccomp filter, run by a small interpreter: its verdicts on both architectures."""

import errno
import platform
import struct

import pytest

from everstep.capabilities.bash.seccomp import ALLOW, FIRST_UNKNOWN, MACHINES, program
from tests.everstep.capabilities.bash.surroundings import PYTHON, SandboxHost, bash, policy_for

X86, ARM = MACHINES


def verdict_on(
    machine: str,
    number: int,
    *arguments: int,
    architecture: int | None = None,
) -> int:
    """The error number, or zero where the call is allowed."""
    filter_ = program(machine)
    instructions = list(struct.iter_unpack("=HBBI", filter_))
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, architecture or MACHINES[machine], 0, *padded)
    place, value = 0, 0
    while True:
        operation, if_true, if_false, operand = instructions[place]
        place += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                value &= operand
            case 0x15:
                place += if_true if value == operand else if_false
            case 0x35:
                place += if_true if value >= operand else if_false
            case 0x45:
                place += if_true if value & operand else if_false
            case 0x06:
                return 0 if operand == ALLOW else operand & 0xFFFF
            case _:
                raise AssertionError(operation)


EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
READ_WRITE, CREATE, TEMPORARY = 0o2, 0o100, 0o20200000

CALLS = [
    ("read", 0, 63, (), 0),
    ("getpid", 39, 172, (), 0),
    ("ptrace", 101, 117, (), EPERM),
    ("mount", 165, 40, (), EPERM),
    ("unshare", 272, 97, (), EPERM),
    ("setns", 308, 268, (), EPERM),
    ("bpf", 321, 280, (), EPERM),
    ("keyctl", 250, 219, (), EPERM),
    ("userfaultfd", 323, 282, (), EPERM),
    ("process_vm_writev", 311, 271, (), EPERM),
    ("io_uring_setup", 425, 425, (), ENOSYS),
    ("clone3", 435, 435, (), ENOSYS),
    ("semget", 64, 190, (), ENOSYS),
    ("vmsplice", 278, 75, (), ENOSYS),
    ("openat2", 437, 437, (), ENOSYS),
    ("what is unknown", FIRST_UNKNOWN, FIRST_UNKNOWN, (), ENOSYS),
    ("what is known last", FIRST_UNKNOWN - 1, FIRST_UNKNOWN - 1, (), 0),
    ("x32's getpid", 0x40000027, 0x40000027, (), ENOSYS),
    ("clone, as fork does", 56, 220, (0x01200011,), 0),
    ("clone, as threads do", 56, 220, (0x003D0F00,), 0),
    *(("clone into a namespace", 56, 220, (0x11 | 1 << bit,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
    ("fchmod", 91, 52, (3, 0o777), 0),
    ("fchmod, setuid", 91, 52, (3, 0o4755), EPERM),
    ("fchmodat, setgid", 268, 53, (3, 0, 0o2755), EPERM),
    ("fchmodat2, setuid", 452, 452, (3, 0, 0o6755, 0), EPERM),
    ("mknodat, a pipe", 259, 33, (3, 0, 0o010644), 0),
    ("mknodat, setuid", 259, 33, (3, 0, 0o104755), EPERM),
    ("openat", 257, 56, (3, 0, READ_WRITE, 0o4755), 0),
    ("openat, new", 257, 56, (3, 0, READ_WRITE | CREATE, 0o755), 0),
    ("openat, new and setuid", 257, 56, (3, 0, READ_WRITE | CREATE, 0o4755), EPERM),
    ("openat, nameless and setuid", 257, 56, (3, 0, READ_WRITE | TEMPORARY, 0o4755), EPERM),
    ("ioctl, the size of a terminal", 16, 29, (0, 0x5413), 0),
    ("ioctl, TIOCSTI", 16, 29, (0, 0x5412), EPERM),
    ("ioctl, TIOCSTI with more above", 16, 29, (0, 0x1_0000_5412), EPERM),
    ("ioctl, TIOCLINUX", 16, 29, (0, 0x541C), EPERM),
    ("personality, asked", 135, 92, (0xFFFFFFFF,), 0),
    ("personality, addresses that can be guessed", 135, 92, (0x40000,), EPERM),
    ("socket, local", 41, 198, (1, 1, 0), errno.EACCES),
    ("socket, local with more above", 41, 198, (0x1_0000_0001, 1 | 0o2000000, 0), errno.EACCES),
    ("socketpair", 53, 199, (1, 1 | 0o2004000, 0), 0),
    ("socketpair, packets in order", 53, 199, (1, 5, 0), 0),
    ("socketpair, datagrams", 53, 199, (1, 2 | 0o2000000, 0), errno.EACCES),
    ("socketpair, datagrams by another name", 53, 199, (1, 3, 0), errno.EACCES),
    ("socketpair of the internet", 53, 199, (2, 1, 0), errno.EAFNOSUPPORT),
    ("x32's socket", 0x40000000 + 41, 0x40000000 + 41, (1, 1, 0), ENOSYS),
    ("io_setup", 206, 0, (128,), ENOSYS),
    ("inotify_init1", 294, 26, (0,), errno.EMFILE),
    ("socket, TCP", 41, 198, (2, 1 | 0o2004000, 6), 0),
    ("socket, UDP", 41, 198, (10, 2, 17), 0),
    ("socket, addresses", 41, 198, (16, 3, 0), 0),
    ("socket, the kernel's filters", 41, 198, (16, 3, 12), errno.EAFNOSUPPORT),
    ("socket, SCTP", 41, 198, (2, 1, 132), errno.EPROTONOSUPPORT),
    ("socket, several ways of TCP", 41, 198, (2, 1, 262), errno.EPROTONOSUPPORT),
    ("socket, packets in order", 41, 198, (2, 5, 0), errno.ESOCKTNOSUPPORT),
    *(
        (f"socket of family {family}", 41, 198, (family, 1, 0), errno.EAFNOSUPPORT)
        for family in (0, 3, 9, 15, 17, 29, 31, 38, 40, 44)
    ),
]


@pytest.mark.parametrize(("name", "x86", "arm", "arguments", "expected"), CALLS)
def test_a_call_gets_the_same_verdict_on_both_architectures(
    name: str, x86: int, arm: int, arguments: tuple[int, ...], expected: int
) -> None:
    """9.1.5: a refused call fails, and no process is killed."""
    assert verdict_on(X86, x86, *arguments) == expected, name
    assert verdict_on(ARM, arm, *arguments) == expected, name


@pytest.mark.parametrize(
    ("number", "arguments"),
    [(90, (0, 0o4755)), (85, (0, 0o4755)), (133, (0, 0o4755)), (2, (0, CREATE, 0o4755))],
)
def test_the_old_calls_are_checked_as_well(number: int, arguments: tuple[int, ...]) -> None:
    """9.1.5: chmod, creat, mknod and open, which only x86 has."""
    assert verdict_on(X86, number, *arguments) == EPERM
    assert verdict_on(X86, number, *(each & 0o777 for each in arguments)) == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_are_refused(machine: str) -> None:
    """9.1.5: 32-bit numbers mean other calls."""
    assert verdict_on(machine, 39, architecture=0x40000003) == EPERM


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these instructions are those of x86")
async def test_32_bit_calls_create_no_local_sockets(around: SandboxHost) -> None:
    """9.1.7: neither `socketcall` nor `socket` of i386, called for real."""
    # mov eax, NUMBER; mov ebx, FIRST; mov ecx, SECOND; xor edx, edx; int 0x80; ret
    code = (
        "import ctypes, mmap, struct; "
        "m = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, 7); "
        "address = ctypes.addressof(ctypes.c_char.from_buffer(m)); "
        'm[2048:2060] = struct.pack("3I", 1, 1, 0); '
        "call = lambda number, first, second: (m.__setitem__(slice(0, 20), "
        'b"\\x53\\xb8" + struct.pack("I", number) + b"\\xbb" + struct.pack("I", first) + '
        'b"\\xb9" + struct.pack("I", second) + b"\\x31\\xd2\\xcd\\x80"), '
        'm.__setitem__(slice(20, 22), b"\\x5b\\xc3"), ctypes.CFUNCTYPE(ctypes.c_int)(address)())[2]; '
        "print(call(102, 1, address + 2048), call(359, 1, 1))"
    )
    told = await bash(f"{PYTHON} -I -S -c '{code}'", policy_for(around))
    assert told == f"{-EPERM} {-EPERM}\n"


def test_an_architecture_without_a_table_is_named() -> None:
    """9.1.5: no command runs without a filter."""
    with pytest.raises(ValueError, match="no table of system calls for riscv64; use x86_64 or aarch64"):
        program("riscv64")
