"""The processes of this machine, to find those that a server left behind."""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


async def command_lines() -> dict[int, str]:
    """Return the command line of every process, or the title it set, by process id."""
    if (PROC / "self/cmdline").exists():
        return _from_proc()
    listing = await asyncio.create_subprocess_exec(
        "ps", "-Awwo", "pid=,command=", stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
    )
    output, _ = await listing.communicate()
    lines = (line.split(maxsplit=1) for line in output.decode(errors="replace").splitlines())
    return {int(line[0]): line[1] for line in lines if len(line) > 1}


def _from_proc() -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
    return found
