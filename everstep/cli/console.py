"""Draws pages and tables on a terminal, with the library rich.

Every text that reaches the terminal through this console is made visible first: what users and models write
can neither move the cursor nor be taken for markup. Colours repeat what words say, so a page reads the same
without them.
"""

from collections.abc import Iterable
from shutil import get_terminal_size
from typing import Final, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from everstep.cli.drawing import chosen_color
from everstep.cli.printing import StyledOutput, visible
from everstep.cli.styles import COLORS

NARROW: Final = 60
"""Columns below which a table becomes a list of records."""

_ASCII: Final = str.maketrans({"·": "-", "→": ">", "…": "."})

MIN_WIDTH: Final = 20
"""Columns for which pages are laid out at least; a narrower terminal wraps them itself."""


class SafeConsole(Console):
    """A console that makes all text visible; control sequences are only its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with a replacement for each character that a terminal would interpret."""
        is_ascii = (options or self.options).ascii_only
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n":
                yield segment
            else:
                text = visible(segment.text)
                yield Segment(_as_ascii(text) if is_ascii else text, segment.style)


def _as_ascii(text: str) -> str:
    """The text for a terminal without Unicode, with as many columns."""
    return text if text.isascii() else text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def open_console() -> Console:
    """The console of standard output, as wide as the terminal."""
    color = chosen_color()
    console = SafeConsole(
        file=cast("TextIO", StyledOutput()),
        theme=Theme(dict(COLORS)),
        markup=False,
        emoji=False,
        highlight=False,
        no_color=True if color == "never" else None,
        force_terminal=True if color == "always" else None,
        legacy_windows=False,
    )
    if console.is_dumb_terminal:
        # The library assumes 80 columns.
        console.width = get_terminal_size().columns
    if console.width < MIN_WIDTH:  # noqa: PLR1730 -- a width that is set no longer follows the terminal
        console.width = MIN_WIDTH
    return console


def styled(text: object, style: str = "") -> Text:
    """A text in a style, which contains no markup."""
    # Not as the style of the whole text, which what is appended would take over.
    return Text().append(visible(str(text)).expandtabs(4), style=style)
