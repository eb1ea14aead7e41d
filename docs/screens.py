"""Makes the pictures of docs/terminal.md: `make screens`.

It starts a local installation in an empty folder, runs the commands in a terminal (tmux), and draws what the
terminal shows as SVG. The pictures load nothing from elsewhere.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from shutil import which
from typing import Final

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

HERE: Final = Path(__file__).parent
SCREENS: Final = HERE / "screens"
EVERSTEP: Final = Path(sys.executable).parent / "everstep"
COLUMNS: Final = 100
ROWS: Final = 70
PATIENCE_SECONDS: Final = 120


class Terminal:
    """A terminal of tmux, with a server of its own."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._socket = str(folder / "tmux")
        self._folder = folder
        self._environment = {
            **os.environ,
            "EVERSTEP_DATA": str(data),
            "EVERSTEP_AGENTS": "desk:agents",
            "TERM": "xterm-256color",
        }

    def _tmux(self, *arguments: str) -> str:
        command = ("tmux", "-S", self._socket, "-f", "/dev/null", *arguments)
        done = subprocess.run(  # noqa: S603 -- this script's own commands
            command, capture_output=True, text=True, check=True, cwd=self._folder, env=self._environment
        )
        return done.stdout

    def open(self) -> None:
        """Open a window."""
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        self._tmux("new-session", "-d", "-s", "screens", *size, "env PS1='$ ' bash --norc --noprofile")

    def close(self) -> None:
        """End the server."""
        self._tmux("kill-server")

    def type(self, text: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-t", "screens", "-l", text)
        self._tmux("send-keys", "-t", "screens", "Enter")

    def press(self, key: str) -> None:
        """Press a key."""
        self._tmux("send-keys", "-t", "screens", key)

    def run(self, command: str, until: str | None = None) -> None:
        """Run a command in an empty window, until it shows a text or ends."""
        self.type("clear; tput reset")
        self.wait(lambda: self.text().strip() == "$")
        self.type(command)
        if until is None:
            self.wait(lambda: self.text().rstrip().endswith("\n$"))
        else:
            self.wait(lambda: until in self.text())

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_done():
            if time.monotonic() > deadline:
                raise SystemExit(f"the terminal shows:\n{self.text()}")
            time.sleep(0.2)

    def text(self) -> str:
        """What the window shows."""
        return self._tmux("capture-pane", "-p", "-t", "screens")

    def picture(self, name: str, title: str) -> None:
        """Draw the window as SVG."""
        lines = self._tmux("capture-pane", "-e", "-p", "-t", "screens").rstrip().splitlines()
        # The last prompt is no part of the output.
        shown = lines[:-1] if Text.from_ansi(lines[-1]).plain.strip() == "$" else lines
        console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
        for line in shown:
            console.print(Text.from_ansi(line), no_wrap=True, crop=False, overflow="ignore")
        drawn = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id=f"screen-{name}")
        # The fonts that the library names are on another host.
        drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("Fira Code", "")
        (SCREENS / f"{name}.svg").write_text(
            drawn.replace("font-family: ,", "font-family:"), encoding="utf-8"
        )
        print(f"docs/screens/{name}.svg")  # noqa: T201


@contextmanager
def installation(folder: Path, data: Path) -> Generator[None]:
    """A local installation with the agent of the screens."""
    ports = [part for name in ("http", "gateway", "temporal", "ui") for part in (f"--{name}-port", "0")]
    log = folder / "up.log"
    command = (str(EVERSTEP), "--data", str(data), "--agents", "desk:agents", "up", *ports)
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)  # noqa: S603 -- see above
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "Ctrl-C stops" not in log.read_text(encoding="utf-8"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(log.read_text(encoding="utf-8"))
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait()


def ids(folder: Path, data: Path, *filters: str) -> list[str]:
    """The executions that match, newest first."""
    command = (str(EVERSTEP), "--data", str(data), "executions", "--json", *filters)
    found = subprocess.run(  # noqa: S603 -- see above
        command, cwd=folder, capture_output=True, text=True, check=True
    )
    return [json.loads(line)["id"] for line in found.stdout.splitlines()]


def main() -> None:
    """Make all pictures."""
    if which("tmux") is None:
        raise SystemExit("install tmux: it is the terminal of the pictures")
    with tempfile.TemporaryDirectory() as path:
        folder, data = Path(path), Path(path) / "data"
        (folder / "desk.py").write_text((SCREENS / "desk.py").read_text(encoding="utf-8"), encoding="utf-8")
        with installation(folder, data):
            terminal = Terminal(folder, data)
            terminal.open()
            try:
                make_pictures(terminal, folder, data)
            finally:
                terminal.close()


def make_pictures(terminal: Terminal, folder: Path, data: Path) -> None:
    """Run the commands, and draw what they show."""
    everstep = shlex.quote(str(EVERSTEP))
    terminal.type(f'everstep() {{ {everstep} "$@"; }}')
    for message in ("Is there stock of tents?", "Book me a train", "Where is my order A-1007?"):
        terminal.run(f"everstep run --detach {shlex.quote(message)}")
    run = 'everstep run "Where is my order A-1007?"'
    terminal.run(run, until="Enter: later >")
    terminal.picture("run", run)
    terminal.type("a")
    terminal.wait(lambda: terminal.text().rstrip().endswith("\n$"))
    (done, *_) = ids(folder, data, "--status", "completed")
    (failed, *_) = ids(folder, data)[-1:]
    (waiting, *_) = ids(folder, data, "--status", "paused")
    for name, command in (
        ("show", f"everstep show {waiting}"),
        ("trace", f"everstep trace {done}"),
        ("executions", "everstep executions"),
        ("inbox", "everstep inbox"),
        ("what-if", "everstep what-if --max-steps 2"),
        ("diff", f"everstep diff {failed} {done}"),
    ):
        terminal.run(command)
        terminal.picture(name, command.replace(waiting, "ID").replace(done, "ID").replace(failed, "ID"))
    terminal.run("everstep top", until="for approval")
    terminal.picture("top", "everstep top")
    terminal.press("q")


if __name__ == "__main__":
    main()
