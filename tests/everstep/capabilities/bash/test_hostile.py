"""Hostile commands: each is contained, and the model reads a clear text.

A command that succeeds prints ESCAPED, a word that no command contains literally.
"""

import re
import resource
from typing import NamedTuple

import pytest

from tests.everstep.capabilities.bash.surroundings import SECRET, SandboxHost, bash, policy_for

MIB = 1024 * 1024
ROOM = 96 * MIB
"""The permitted growth of the worker's memory, for any command."""


class Hostile(NamedTuple):
    """A command, its expected output, and its timeout."""

    name: str
    command: str
    text: str
    seconds: float = 10


def python(code: str) -> str:
    """A Python program to run in the sandbox; of an exception, the last line is read."""
    return f"{{python}} -I -S -c '{code}'"


def calls(name: str, arguments: str) -> str:
    """A C library call that prints ESCAPED on success and its error otherwise."""
    return python(
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
        "buffer = ctypes.create_string_buffer(256); "
        f"done = libc.{name}({arguments}); "
        'print("ESC" + "APED" if done >= 0 else os.strerror(ctypes.get_errno()))'
    )


def system_call(x86: int, arm: int, arguments: str) -> str:
    return calls("syscall", f'{x86} if os.uname().machine == "x86_64" else {arm}, {arguments}')


SAYS_SO = 'print("ESC" + "APED")'
NOT_THERE, NOT_ALLOWED, READ_ONLY = "No such file", "Operation not permitted", "Read-only file system"
NO_SPACE, NO_FUNCTION, NO_FAMILY = "No space left", "not implemented", "not supported by protocol"
TOO_LARGE = "File size limit|too large"
SUCCESS = '&& echo ESC""APED'
STOPPED = "sandbox: the command was stopped, as "

FILES = [
    Hostile("a path upwards", "cat ../outside/secret", NOT_THERE),
    Hostile("an absolute path", "cat {outside}/secret", NOT_THERE),
    Hostile("a link to a file outside", "ln -s {outside}/secret l; cat l", NOT_THERE),
    Hostile("a link to the root", "ln -s / r; cat r{outside}/secret", NOT_THERE),
    Hostile("a hard link", f"ln {{outside}}/secret h {SUCCESS}", NOT_THERE),
    Hostile("passwords", f"cat /etc/shadow {SUCCESS}", NOT_THERE),
    Hostile("who is root", f"cat /etc/sudoers {SUCCESS}", NOT_THERE),
    Hostile("keys of people", f"cat /root/.ssh/* /home/*/.ssh/* {SUCCESS}", NOT_THERE),
    Hostile("the machine's services", f"ls /run/docker.sock /var/run/docker.sock {SUCCESS}", NOT_THERE),
    Hostile("the machine's hardware", f"ls /sys {SUCCESS}", NOT_THERE),
    Hostile("the machine's cgroups", f"mkdir /sys/fs/cgroup/mine {SUCCESS}", NOT_THERE),
    Hostile("the machine's memory", f"head -c 1 /dev/mem {SUCCESS}", NOT_THERE),
    Hostile("the machine's disk", f"ls /dev/vda /dev/sda /dev/nvme0n1 {SUCCESS}", NOT_THERE),
    Hostile("a disk of its own making", f"mknod disk b 8 0 {SUCCESS}", NOT_ALLOWED),
    Hostile("a root through /proc", "cat /proc/1/root{outside}/secret", NOT_THERE),
    Hostile("a directory through /proc", "cat /proc/1/cwd/../outside/secret", NOT_THERE),
    Hostile("writing programs", f"touch /usr/bin/mine {SUCCESS}", READ_ONLY),
    Hostile("writing the root", f"touch /mine {SUCCESS}", READ_ONLY),
    Hostile("writing people", f"echo me >>/etc/passwd {SUCCESS}", READ_ONLY),
    Hostile("writing devices", f"touch /dev/mine {SUCCESS}", READ_ONLY),
    Hostile("removing the base directory", "rm -rf {base}; ls -d {base}; echo kept", "kept"),
    Hostile("renaming the base directory", f"mv {{base}} {{base}}.old {SUCCESS}", "busy|Read-only"),
    Hostile("something in its place", f"ln -sfn {{outside}} {{base}}; cat secret {SUCCESS}", NOT_THERE),
    Hostile("a pipe without a writer", "mkfifo p; cat p", "^Time limit of 1s reached", 1),
    Hostile("a huge file", f"truncate -s 5G big {SUCCESS}", TOO_LARGE),
    Hostile("a file that grows", f"truncate -s 1023M big; head -c 2M /dev/zero >>big {SUCCESS}", TOO_LARGE),
    Hostile("filling /tmp", f"head -c 1G /dev/zero >/tmp/big {SUCCESS}", NO_SPACE),
    Hostile("filling the home", f"head -c 1G /dev/zero >~/big {SUCCESS}", NO_SPACE),
    Hostile("filling shared memory", f"head -c 1G /dev/zero >/dev/shm/big {SUCCESS}", NO_SPACE),
    Hostile(
        "files without end",
        python('import os; [os.close(os.open(f"/tmp/{{n}}", os.O_CREAT)) for n in range(10**7)]'),
        f"{STOPPED}it made more than 100000 files",
    ),
    Hostile("a program that lends rights", f"cp /bin/true t; chmod u+s t {SUCCESS}", NOT_ALLOWED),
    Hostile(
        "a program made to lend rights",
        python('import os; os.open("t", os.O_CREAT | os.O_WRONLY, 0o4755); print("ESC" + "APED")'),
        NOT_ALLOWED,
    ),
    Hostile("rights given to a file", f"cp /bin/true t; setcap cap_sys_admin+ep t {SUCCESS}", "."),
]

PROCESSES = [
    Hostile("the worker's environment", "cat /proc/{worker}/environ", NOT_THERE),
    Hostile("its own environment", 'env; cat /proc/*/environ | tr "\\0" "\\n"', "HOME=/home/agent"),
    Hostile("a signal to the worker", f"kill -9 {{worker}} {SUCCESS}", "No such process"),
    Hostile("a signal to the first process", "kill -9 1; echo here", "here"),
    Hostile("a signal to the parent", "kill -9 $PPID; echo here", "here"),
    Hostile("a signal to all", "kill -9 -1; echo here", "here"),
    Hostile("a signal to itself", "kill -9 $$", "^Exit code: 137"),
    # `wait` would not wait for it: the processes that it waits for end after they have started others.
    Hostile("a fork bomb", ":(){{ :|:& }};:; sleep 9", "Resource temporarily unavailable|Time limit", 2),
    Hostile("a memory bomb", python('print(len("x" * 10**10))'), "MemoryError"),
    Hostile("a memory bomb of words", "tail /dev/zero", "memory exhausted"),
    Hostile(
        "a memory bomb of many processes",
        python('import os, time; [os.fork() for _ in range(4)]; x = b"x" * 50_000_000; time.sleep(60)'),
        f"{STOPPED}all its processes together took more than 128 MiB of memory",
    ),
    Hostile(
        "a memory bomb that is shared",
        python('import mmap; m = mmap.mmap(-1, 2 * 10**9); [m.write(b"x" * 10**6) for _ in range(2000)]'),
        f"{STOPPED}all its processes together took more than 128 MiB of memory",
    ),
    Hostile("memory of no process", system_call(319, 279, 'b"x", 0'), NO_FUNCTION),
    Hostile("memory of System V", system_call(29, 194, "0, 4096, 0o1600"), NO_FUNCTION),
    Hostile("semaphores of System V", system_call(64, 190, "0, 32000, 0o1600"), NO_FUNCTION),
    Hostile("memory that a pipe keeps", system_call(278, 75, "1, buffer, 1, 0"), NO_FUNCTION),
    Hostile(
        "a memory bomb that is in no table",
        python(
            "import mmap; m = mmap.mmap(-1, 2 * 10**9); "
            "[(m.write(bytes(2**20)), m.madvise(4, n * 2**20, 2**20)) for n in range(1900)]; "
            'print("ESC" + "APED")'
        ),
        f"{STOPPED}all its processes together took more than 128 MiB of memory",
    ),
    Hostile(
        "a memory bomb in sockets",
        python(
            "import socket; pairs = [socket.socketpair() for _ in range(500)]; "
            "[one.setblocking(False) or one.send(bytes(100000)) for pair in pairs for one in pair]; "
            "pairs[0][0].setblocking(True); pairs[0][1].setblocking(True); "
            "[pairs[0][0].recv(10**6) for _ in range(9)]"
        ),
        f"{STOPPED}it opened more than 256 sockets",
    ),
    Hostile(
        "buffers of sockets that are made larger",
        python(
            "import socket; one, other = socket.socketpair(); size = one.getsockopt(1, 7); "
            "[one.setsockopt(1, name, 2**22) for name in (7, 8, 32, 33)]; "
            'print("kept" if one.getsockopt(1, 7) == size else "ESC" + "APED")'
        ),
        "^kept$",
    ),
    Hostile(
        "a memory bomb in TCP",
        python(
            'import select, socket, time; door = socket.create_server(("127.0.0.1", 0)); '
            "name = door.getsockname(); "
            "pairs = [(socket.create_connection(name), door.accept()[0]) for _ in range(120)]; "
            "[one.setblocking(False) for one, _ in pairs]; "
            "[one.send(bytes(2**22)) for _ in range(3) for one, _ in pairs "
            "if select.select([], [one], [], 0)[1]]; time.sleep(9)"
        ),
        f"{STOPPED}the data in its sockets takes more than 128 MiB",
    ),
    Hostile("a flood", "yes", f"{STOPPED}it wrote more than 10 MiB"),
    Hostile("a flood of a gigabyte", "head -c 1G /dev/zero", f"{STOPPED}it wrote more than 10 MiB"),
    Hostile("a flood of errors", "head -c 1G /dev/zero >&2", f"{STOPPED}it wrote more than 10 MiB"),
    Hostile("a line without end", 'printf "%0100000000d" 0', f"{STOPPED}it wrote more than 10 MiB"),
    Hostile("a process in the background", "sleep 98765 & echo begun", "^begun"),
    Hostile("a session of its own", "setsid -f sleep 98765; echo begun", "^begun"),
    Hostile("a daemon", "(setsid sh -c 'sleep 98765 & sleep 98765' &) ; echo begun", "^begun"),
    Hostile(
        "a nameless daemon", "(env -i setsid sleep 98765 </dev/null &>/dev/null &); echo begun", "^begun"
    ),
    Hostile("one that hears nothing", "trap '' TERM HUP INT; sleep 98765", "^Time limit of 1s reached", 1),
    Hostile("one that stops", "kill -STOP $$", "^Time limit of 1s reached", 1),
    Hostile("more processes", f"ulimit -u unlimited {SUCCESS}", "cannot modify limit"),
    Hostile("core dumps", f"ulimit -c unlimited {SUCCESS}; kill -SEGV $$; ls", "cannot modify limit"),
    Hostile("precedence", f"renice -n -5 $$ {SUCCESS}", "denied|not permitted"),
    Hostile("to be spared", f"echo -1000 >/proc/self/oom_score_adj {SUCCESS}", READ_ONLY),
    Hostile("to be like others", f"echo 0 >/proc/self/oom_score_adj {SUCCESS}", READ_ONLY),
    Hostile("code in the first process", f"exec 3<>/proc/1/mem {SUCCESS}", READ_ONLY),
    Hostile(
        "a process without limits",
        "cat /proc/[0-9]*/limits | grep -E '^Max (data|processes|file size|open)' | grep unlimited "
        f"{SUCCESS} || echo none",
        "none",
    ),
    Hostile(
        "locks without end",
        python(
            'import fcntl; f = open("l", "w"); f.truncate(10**8); '
            "[fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * n) for n in range(10**7)]"
        ),
        f"{STOPPED}it holds more than 10000 locks on files",
    ),
    Hostile("events of the machine", system_call(206, 0, "60000, buffer"), NO_FUNCTION),
    Hostile("watches of the user", system_call(294, 26, "0"), "Too many open files"),
    Hostile(
        "filling all places for scratch",
        "for place in /tmp ~ /dev/shm; do head -c 1G /dev/zero >$place/big 2>/dev/null; done; "
        "du -cm /tmp/big ~/big /dev/shm/big | tail -1",
        r"^128\ttotal",
    ),
    Hostile("a library for others", "LD_PRELOAD={base}/mine.so /bin/true; echo on", "cannot be preloaded"),
]

NETWORK = [
    Hostile("the worker's own", f"exec 3<>/dev/tcp/127.0.0.1/{{port}} {SUCCESS}", "Connection refused"),
    Hostile("the internet", f"exec 3<>/dev/tcp/1.1.1.1/53 {SUCCESS}", "unreachable"),
    Hostile("a packet", f"echo x >/dev/udp/8.8.8.8/53 {SUCCESS}", "unreachable"),
    Hostile("a name", f"getent hosts example.com {SUCCESS} || echo none", "none"),
    Hostile("the cloud's secrets", f"exec 3<>/dev/tcp/169.254.169.254/80 {SUCCESS}", "unreachable"),
    Hostile(
        "local sockets",
        python(
            'import socket; socket.socket(socket.AF_UNIX).connect("\\x00{abstract}"); print("ESC" + "APED")'
        ),
        "Permission denied",
    ),
    *(
        Hostile(name, python(f"import socket; {code}; {SAYS_SO}"), "Permission denied")
        for name, code in [
            ("a local socket", "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)"),
            ("a local socket for datagrams", "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)"),
            ("a pair that sends elsewhere", "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
        ]
    ),
    Hostile("a pair", python('import socket; socket.socketpair(); print("paired")'), "^paired"),
    *(
        Hostile(name, python(f"import socket; socket.socket({family}, {kind}); {SAYS_SO}"), NO_FAMILY)
        for name, family, kind in [
            ("the hypervisor", "socket.AF_VSOCK", "1"),
            ("all packets", "socket.AF_PACKET", "3"),
            ("the kernel's ciphers", "socket.AF_ALG", "5"),
            ("bluetooth", "31", "3"),
        ]
    ),
    Hostile(
        "packets of its own making",
        python('import socket; socket.socket(2, 3, 1); print("ESC" + "APED")'),
        NOT_ALLOWED,
    ),
]

KERNEL = [
    Hostile("tracing", calls("ptrace", "ctypes.c_long(16), 1, 0, 0"), NOT_ALLOWED),
    Hostile("reading memory", system_call(310, 270, "1, buffer, 1, buffer, 1, 0"), NOT_ALLOWED),
    Hostile("mounting", calls("mount", 'b"x", b"/tmp", b"tmpfs", 0, None'), NOT_ALLOWED),
    Hostile("mounting by the new calls", system_call(430, 430, 'b"tmpfs", 0'), NOT_ALLOWED),
    Hostile("unmounting", calls("umount2", 'b"/tmp", 2'), NOT_ALLOWED),
    Hostile("another root", calls("chroot", 'b"/tmp"'), NOT_ALLOWED),
    Hostile("a user namespace", calls("unshare", "0x10000000"), NOT_ALLOWED),
    Hostile("a mount namespace", calls("unshare", "0x20000"), NOT_ALLOWED),
    Hostile("a child in a namespace", system_call(56, 220, "0x10000011, 0, 0, 0, 0"), NOT_ALLOWED),
    Hostile("a child by the new call", system_call(435, 435, "buffer, 88"), NO_FUNCTION),
    Hostile("another's namespace", 'nsenter --target 1 --mount true && echo ESC""APED', NOT_ALLOWED),
    Hostile("programs in the kernel", system_call(321, 280, "0, buffer, 128"), NOT_ALLOWED),
    Hostile("keys", system_call(250, 219, "0, -3, 1"), NOT_ALLOWED),
    Hostile("work in the kernel", system_call(425, 425, "8, buffer"), NO_FUNCTION),
    Hostile("measuring", system_call(298, 241, "buffer, 0, -1, -1, 0"), NOT_ALLOWED),
    Hostile("faults of memory", system_call(323, 282, "0"), NOT_ALLOWED),
    Hostile("a module", system_call(175, 105, "buffer, 256, buffer"), NOT_ALLOWED),
    Hostile("another kernel", system_call(246, 104, "0, 0, buffer, 0"), NOT_ALLOWED),
    Hostile("a call that nobody knows", system_call(999, 999, "0"), NO_FUNCTION),
    Hostile("a call of x32", system_call(0x40000000 + 39, 999, "0"), NO_FUNCTION),
    Hostile("the time", f"date -s 2001-01-01 {SUCCESS}", NOT_ALLOWED),
    Hostile("the machine's name", f"hostname mine {SUCCESS}", "ermission|not permitted|must be root"),
    Hostile("a restart", f"echo b >/proc/sysrq-trigger {SUCCESS}", f"denied|Read-only|{NOT_THERE}"),
    Hostile("core dumps of all", f"echo x >/proc/sys/kernel/core_pattern {SUCCESS}", "denied|Read-only"),
    Hostile("the kernel's log", f"dmesg {SUCCESS}", NOT_ALLOWED),
    Hostile("another user", f"su -c id {SUCCESS}; sudo -n id {SUCCESS}; mount /dev/vda /tmp {SUCCESS}", "."),
    Hostile(
        "typing into a terminal",
        python(
            "import fcntl, os, pty; leader, follower = pty.openpty(); "
            'fcntl.ioctl(follower, 0x5412, b"x"); print("ESC" + "APED")'
        ),
        NOT_ALLOWED,
    ),
    Hostile(
        "descriptors of the worker",
        "readlink /proc/self/fd/* | grep -v -e pipe: -e /dev/null -e /proc || echo none",
        "none",
    ),
]

ALL = FILES + PROCESSES + NETWORK + KERNEL


@pytest.mark.parametrize("hostile", ALL, ids=[each.name for each in ALL])
async def test_a_hostile_command_is_contained(hostile: Hostile, around: SandboxHost) -> None:
    """9.1.5, 9.1.1, 9.1.7, 9.1.8: a refusal reaches the model as the command's own error output."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    command = hostile.command.format(**around.placeholders)

    text = await bash(command, policy_for(around, hostile.seconds))

    assert re.search(hostile.text, text, re.MULTILINE), text
    assert "ESCAPED" not in text
    assert SECRET not in text
    assert not around.running_processes()
    assert (around.outside / "secret").read_text() == SECRET
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < ROOM


def test_the_table_is_long() -> None:
    assert len({each.name for each in ALL}) == len(ALL) >= 60
