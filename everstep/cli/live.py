"""Shows an execution at a terminal while it runs: steps, cards of calls, and what it does now."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.requests import RequestRow, RequestState
from everstep.agent_domain.storage.steps import StepRow
from everstep.cli import output
from everstep.cli.console import styled
from everstep.cli.execution_page import PageContext, call_card, request_card, step_details, step_title
from everstep.cli.follow import Activity, OutputPiece, StepHead
from everstep.cli.printing import echo
from everstep.cli.styles import QUIET, RUNS, WAITS
from everstep.cli.times import seconds_text

FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_FRAMES: Final = "|/-\\"
FRAMES_PER_SECOND: Final = 8

Ask = Callable[[RequestRow], Awaitable[None]]
"""Asks a person for the answer to an open request."""


class LiveView:
    """Prints pieces of output, and below them a line that says what the execution does, for how long.

    Args:
        console: The console.
        ask: Asks for answers in place; None where no person can be asked.
    """

    def __init__(self, console: Console, ask: Ask | None = None) -> None:
        self._console = console
        self._ask = ask
        self._in_line = False
        self._activity: Activity | None = None
        self._since = monotonic()
        self._live: Live | None = None

    async def show(self, piece: OutputPiece) -> None:
        """Show a piece of output."""
        match piece.shown:
            case Activity() as activity:
                self._begin(activity)
            case StepHead(number, attempt):
                self._draw(Text())
                self._draw(step_title(number, attempt))
            case StepRow() as step:
                self._draw(Padding(styled(step_details(step, datetime.now(UTC)), QUIET), (0, 0, 0, 2)))
            case CallRow(record=None):
                # How far it is: the activity says it as well.
                pass
            case CallRow() as call:
                self._draw(Padding(call_card(call, PageContext(datetime.now(UTC))), (0, 0, 0, 2)))
            case RequestRow() as request:
                await self._show_request(request)
            case None:
                self.stop()
                self._write(piece.text)

    async def _show_request(self, request: RequestRow) -> None:
        if request.state is not RequestState.OPEN:
            self._draw(styled(f"  {output.request_kind(request)}  {output.request_text(request)}", WAITS))
            return
        self._draw(Padding(request_card(request), (0, 0, 0, 2)))
        if self._ask is not None:
            await self._ask(request)

    def stop(self) -> None:
        """Remove the line about the activity."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def end_line(self) -> None:
        """End an unfinished line of the model's text."""
        self.stop()
        if self._in_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        echo(text, nl=False)
        if text:
            self._in_line = not text.endswith("\n")

    def _draw(self, part: RenderableType) -> None:
        self.end_line()
        self._console.print(part)

    def _begin(self, activity: Activity) -> None:
        if self._activity is None or activity.text != self._activity.text:
            self._activity, self._since = activity, monotonic()
        if self._live is not None or self._in_line or not self._console.is_terminal:
            return
        self._live = Live(
            get_renderable=self._frame,
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def _frame(self) -> Text:
        activity = self._activity or Activity("")
        frames = ASCII_FRAMES if self._console.options.ascii_only else FRAMES
        frame = frames[int(monotonic() * FRAMES_PER_SECOND) % len(frames)]
        elapsed = monotonic() - self._since
        if activity.since is not None:
            # The clock of another machine may be ahead.
            elapsed = max(0.0, (datetime.now(UTC) - activity.since).total_seconds())
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{frame} ", style=RUNS).append(f"{seconds_text(elapsed)} ", style=QUIET)
        return text.append_text(styled(" ".join(activity.text.split())))

    def __enter__(self) -> "LiveView":
        return self

    def __exit__(self, *_error: object) -> None:
        # The terminal may be gone.
        with suppress(OSError):
            self.end_line()
