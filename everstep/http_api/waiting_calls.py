"""Requests of this process that wait for executions, and how often they look."""

POLL_SECONDS = (0.1, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Seconds between two looks at an execution; the last one is repeated."""
POLLS_PER_SECOND = 200
"""The limit of such looks in this process: with more waiting calls, each of them looks less often."""


class WaitingCalls:
    """Counts the calls that wait."""

    def __init__(self) -> None:
        self.count = 0

    def pause_before(self, looks: int) -> float:
        """Seconds to wait before the next look of a call.

        Args:
            looks: How often the call has looked.
        """
        return max(POLL_SECONDS[min(looks, len(POLL_SECONDS) - 1)], self.count / POLLS_PER_SECOND)
