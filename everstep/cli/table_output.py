"""Lists of the commands: a table on a terminal, and a line for each row in a pipe."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from everstep.cli.drawing import draws_pages
from everstep.cli.printing import echo
from everstep.cli.styles import QUIET

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")


def no_style(_row: object) -> str:
    """Style nothing."""
    return ""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table."""

    title: str
    text: Callable[[T], str]
    style: Callable[[T], str] = no_style
    below: Callable[[T], str] | None = None
    """The second line of a cell."""
    min_width: int = 0
    """The columns that a terminal needs for it to be shown."""
    max_width: int = 10_000
    """The columns of a terminal above which it is not shown."""
    is_number: bool = False
    is_free: bool = False
    """Whether it is cut where the terminal ends. It is the last one: a text that is read from the right would
    otherwise change places with its neighbours."""

    def fits(self, width: int) -> bool:
        """Whether it is shown on a terminal of this width."""
        return self.min_width <= width <= self.max_width


def print_rows(rows: Sequence[T], columns: Sequence[Column[T]], line: Callable[[T], str]) -> None:
    """Print rows as a table on a terminal, as a list where it is narrow, and as lines in a pipe.

    Args:
        rows: The rows.
        columns: The columns of the table.
        line: A row as the line that scripts read.
    """
    if not draws_pages():
        for row in rows:
            echo(line(row))
        return
    if not rows:
        return
    # Imported here because a pipe does not need it.
    from everstep.cli.console import NARROW, open_console  # noqa: PLC0415

    console = open_console()
    if console.width < NARROW:
        _print_records(console, rows, columns)
    else:
        console.print(build_table(rows, columns, console.width))


def build_table(rows: Iterable[T], columns: Sequence[Column[T]], width: int) -> "Table":
    """A table for a terminal of this width."""
    from rich.table import Table  # noqa: PLC0415

    from everstep.cli.console import styled  # noqa: PLC0415

    shown = [column for column in columns if column.fits(width)]
    # The free column takes what the others leave, which stay whole.
    is_wide = any(column.is_free for column in shown)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=QUIET, pad_edge=False, expand=is_wide)
    for column in shown:
        table.add_column(
            styled(column.title),
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.is_free else None,
            min_width=4 if column.is_free else None,
        )
    for row in rows:
        table.add_row(*(_cell(each, row) for each in shown))
    return table


def _cell(column: Column[T], row: T) -> "Text":
    from everstep.cli.console import styled  # noqa: PLC0415

    cell = styled(_one_line(column.text(row)), column.style(row))
    if column.below is not None:
        cell.append_text(styled(f"\n{_one_line(column.below(row))}", QUIET))
    return cell


def _print_records(console: "Console", rows: Iterable[T], columns: Sequence[Column[T]]) -> None:
    from everstep.cli.console import styled  # noqa: PLC0415

    for number, row in enumerate(rows):
        if number:
            console.print()
        for column in filter(lambda each: each.fits(console.width), columns):
            texts = [column.text(row), column.below(row) if column.below else ""]
            for text in filter(None, map(_one_line, texts)):
                console.print(styled(f"{column.title} ", QUIET).append_text(styled(text, column.style(row))))


def _one_line(text: str) -> str:
    return " ".join(text.split())
