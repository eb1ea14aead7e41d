"""The one way to the terminal: what people and models wrote is shown, and never obeyed.

Control characters move the cursor and rewrite what stands there; bidirectional ones let a text read as
another one. All commands print by `echo`. What others print, such as a log, an error of click or a stack
trace, goes through `VisibleText`, in which `main` wraps both streams.
"""

import codecs
import io
from contextvars import ContextVar
from typing import TextIO, cast

import click

from everstep.agent_domain.values import is_hidden

_KEPT = "\n\t"
_JOINERS = "\u200c\u200d"
"""They join letters and emoji, and are kept where they do: not beside ASCII."""
_IS_SHOWN = ContextVar("is_shown", default=False)
"""Whether a text comes from `echo`, which alone may style it."""


def visible(text: str) -> str:
    """The text, with a replacement for each character that people do not see or a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(_shown(text, at, char) for at, char in enumerate(text))


def _shown(text: str, at: int, char: str) -> str:
    if char.isprintable() or char in _KEPT or not is_hidden(char):
        return char
    if char in _JOINERS:
        beside = (text[at - 1 : at], text[at + 1 : at + 2])
        return "\N{REPLACEMENT CHARACTER}" if any(each and each.isascii() for each in beside) else char
    return "\N{REPLACEMENT CHARACTER}"


def echo(text: object = "", *, nl: bool = True, err: bool = False, dim: bool = False) -> None:
    """Print a text, and the end of a line."""
    shown = visible(str(text))
    token = _IS_SHOWN.set(True)
    try:
        click.echo(click.style(shown, dim=True) if dim else shown, nl=nl, err=err)
    finally:
        _IS_SHOWN.reset(token)


class VisibleText(io.TextIOWrapper):
    """A stream that shows what is written to it."""

    def write(self, text: str, /) -> int:
        """Write it."""
        return super().write(text if _IS_SHOWN.get() else visible(text))


def visible_stream(stream: TextIO) -> TextIO:
    """The same stream, which shows all that is written to it; what its encoding lacks is replaced."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    # click takes ASCII for a mistake, and would write UTF-8 past this stream.
    encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
    binary = cast("TextIO", stream).buffer
    return VisibleText(binary, encoding=encoding, errors="replace", line_buffering=stream.line_buffering)
