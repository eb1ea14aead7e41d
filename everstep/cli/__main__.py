"""`everstep`, as the shell starts it: also `python -m everstep.cli`."""

import os
import sys
from typing import NoReturn

from everstep.cli.main import main


def leave(status: int | str | None) -> NoReturn:
    """End the process at once, with everything said.

    Threads of the Temporal SDK outlive its clients, which cannot be closed. Now and then one of them
    reports back to an interpreter that is being taken down, and aborts it after all work was done.
    """
    if isinstance(status, str):
        sys.stderr.write(status + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def entry(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and leave."""
    try:
        main(arguments, prog_name="everstep")
    except SystemExit as end:
        leave(end.code)
    leave(0)


if __name__ == "__main__":
    entry()
