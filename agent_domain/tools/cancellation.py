"""Whether the result of a tool call is still awaited."""


class Cancellation:
    """Whether the result of a call is still awaited; set once, readable from any thread."""

    __slots__ = ("is_requested",)

    def __init__(self) -> None:
        self.is_requested = False

    def request(self) -> None:
        """Say that the call should end."""
        self.is_requested = True
