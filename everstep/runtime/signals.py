"""The signal actions that child processes start with.

A script that starts a job in the background makes it ignore SIGINT and SIGQUIT, `nohup` adds SIGHUP, and some
container inits ignore more. An ignored signal stays ignored across `exec`, and a shell cannot reset it.
Without this module, the commands of agents that such a job runs would never react to that signal.
"""

import signal
from types import FrameType
from typing import Final

_OF_PYTHON: Final = {signal.SIGPIPE, signal.SIGXFSZ}
"""The interpreter ignores these itself, and `subprocess` restores them."""


def restore_for_children() -> None:
    """Give child processes the default action of each signal that this process ignores.

    The process itself still ignores them: it installs a handler that does nothing, and the kernel resets
    handlers at `exec`. Call it in the main thread.
    """
    for number in signal.valid_signals() - _OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
