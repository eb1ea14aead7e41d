"""Whether output is drawn for a person at a terminal, or printed for a program."""

import os
import sys
from typing import TextIO

import click


def draws_pages() -> bool:
    """Whether to draw pages: on a terminal, or with `--color always`; a pipe receives plain lines."""
    stream: TextIO | None = sys.stdout
    return chosen_color() == "always" or (stream is not None and stream.isatty())


def is_dialogue() -> bool:
    """Whether a person can be asked: both ends are a terminal, and this command is in its foreground."""
    source: TextIO | None = sys.stdin
    if not draws_pages() or source is None or not source.isatty() or not sys.stdout.isatty():
        return False
    try:
        # A command in the background would be stopped when it reads.
        return os.tcgetpgrp(source.fileno()) == os.getpgrp()
    except OSError:
        # This terminal does not control the command, so it stops nothing.
        return True


def chosen_color() -> str:
    """The value of `--color`: `auto`, `always` or `never`."""
    context = click.get_current_context(silent=True)
    return "auto" if context is None else context.find_root().params.get("color") or "auto"
