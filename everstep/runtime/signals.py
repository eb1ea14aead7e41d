"""The signals that children start with.

A script that starts a job in the background has it ignore SIGINT and SIGQUIT, `nohup` adds SIGHUP, and some
inits of containers ignore more. An ignored signal stays ignored across `exec`, and a shell cannot even reset
it. So without this module the commands of agents that such a job runs never react to that signal.
"""

import signal
from types import FrameType
from typing import Final

_OF_PYTHON: Final = {signal.SIGPIPE, signal.SIGXFSZ}
"""The interpreter ignores these itself, and `subprocess` restores them."""


def restore_for_children() -> None:
    """Have the children of this process start with the default action of each signal that it ignores.

    The process itself goes on ignoring them: it gets a handler that does nothing, and the kernel resets
    handlers at `exec`. Call it in the main thread.
    """
    for number in signal.valid_signals() - _OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
