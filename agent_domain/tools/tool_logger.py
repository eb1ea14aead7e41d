"""The logger of tools, without a dependency on the standard one."""

from typing import Protocol


class ToolLogger(Protocol):
    """The methods of a standard logger that tools use."""

    def debug(self, msg: str, *args: object) -> None:
        """Log details."""
        ...

    def info(self, msg: str, *args: object) -> None:
        """Log a normal event."""
        ...

    def warning(self, msg: str, *args: object) -> None:
        """Log something unexpected."""
        ...

    def error(self, msg: str, *args: object) -> None:
        """Log a failure."""
        ...

    def exception(self, msg: str, *args: object) -> None:
        """Log a failure with the exception that is being handled."""
        ...


class SilentLogger:
    """A logger that logs nothing."""

    def debug(self, msg: str, *args: object) -> None:
        """Log nothing."""

    info = warning = error = exception = debug
