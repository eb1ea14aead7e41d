"""Prints to the terminal with control characters replaced, so that a terminal never interprets them.

Texts of users and models may contain them: control characters move the cursor and overwrite other output;
bidirectional ones make a text read as a different one. All commands print with `echo`. Other output, such as
log lines, errors of click and stack traces, passes through `VisibleText`, in which `main` wraps both streams.
"""

import codecs
import io
import sys
from contextvars import ContextVar
from typing import TextIO, cast

import click

_ALLOWED = "\n\t"
_JOINERS = "\u200c\u200d"
"""They join letters and emoji, and are kept only there: not beside ASCII."""
_IS_SHOWN = ContextVar("is_shown", default=False)
"""Whether a text comes from `echo`, the only function that may add styles."""


def visible(text: str) -> str:
    """The text, with a replacement for each invisible character and each one that a terminal interprets."""
    if text.isprintable():
        return text
    return "".join(_visible_char(text, at, char) for at, char in enumerate(text))


def _visible_char(text: str, at: int, char: str) -> str:
    if char.isprintable() or char in _ALLOWED:
        return char
    # Imported here, as it imports pydantic, and most output has none of these characters.
    from everstep.agent_domain.values import is_hidden  # noqa: PLC0415

    if not is_hidden(char):
        return char
    if char in _JOINERS:
        beside = (text[at - 1 : at], text[at + 1 : at + 2])
        return "\N{REPLACEMENT CHARACTER}" if any(each and each.isascii() for each in beside) else char
    return "\N{REPLACEMENT CHARACTER}"


def echo(text: object = "", *, nl: bool = True, err: bool = False, dim: bool = False) -> None:
    """Print a text, by default with a line end."""
    shown = visible(str(text))
    token = _IS_SHOWN.set(True)
    try:
        click.echo(click.style(shown, dim=True) if dim else shown, nl=nl, err=err)
    finally:
        _IS_SHOWN.reset(token)


def show_progress(text: str) -> None:
    """Replace the current line of standard error, which has to be a terminal."""
    token = _IS_SHOWN.set(True)
    try:
        click.echo(f"\r\x1b[2K{visible(text)}", nl=False, err=True)
    finally:
        _IS_SHOWN.reset(token)


class StyledOutput:
    """Standard output for the library that draws pages, whose styles and cursor movements pass.

    Only `everstep.cli.console` writes here: it makes all texts visible itself.
    """

    @property
    def encoding(self) -> str:
        """The encoding of the characters that the terminal can show."""
        stream: TextIO = sys.stdout
        return "ascii" if getattr(stream, "is_ascii", False) else stream.encoding

    def isatty(self) -> bool:
        """Whether standard output is a terminal."""
        return sys.stdout.isatty()

    def fileno(self) -> int:
        """The file descriptor of standard output."""
        return sys.stdout.fileno()

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()

    def write(self, text: str, /) -> int:
        """Write a text as it is."""
        token = _IS_SHOWN.set(True)
        try:
            return sys.stdout.write(text)
        finally:
            _IS_SHOWN.reset(token)


class VisibleText(io.TextIOWrapper):
    """A text stream that makes everything visible that is written to it."""

    is_ascii = False
    """Whether the terminal shows only ASCII."""

    def write(self, text: str, /) -> int:
        """Write the visible form of a text."""
        return super().write(text if _IS_SHOWN.get() else visible(text))


def visible_stream(stream: TextIO) -> TextIO:
    """Wrap a stream in `VisibleText`; characters that its encoding lacks are replaced."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    # click treats an ASCII stream as misconfigured, and would write UTF-8 around this wrapper.
    is_ascii = codecs.lookup(stream.encoding).name == "ascii"
    encoding = "utf-8" if is_ascii else stream.encoding
    binary = cast("TextIO", stream).buffer
    wrapped = VisibleText(binary, encoding=encoding, errors="replace", line_buffering=stream.line_buffering)
    wrapped.is_ascii = is_ascii
    return wrapped
