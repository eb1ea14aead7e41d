"""The exceptions of the client.

EverstepError
+-- Taken
+-- Refused
|   +-- SettingRefused
|   +-- Ended
|       +-- Gone
+-- Ending
+-- NotFound (of the domain)
    +-- Pruned
"""

from uuid import UUID

from everstep.agent_domain.errors import EverstepError, NotFound
from everstep.agent_domain.storage.ledger import PrunedLedger


class Taken(EverstepError):
    """The execution id was used for another request; nothing was changed."""

    def __init__(self, execution_id: UUID) -> None:
        super().__init__(f"The execution {execution_id} was accepted for another request; use another id")


class Refused(EverstepError):
    """The execution does not accept the request now; the message says why. Nothing was changed."""


class SettingRefused(Refused):
    """A schedule or a webhook does not accept the request now.

    Args:
        kind: What does not: `schedule` or `webhook`.
        text: Why, and what to do.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class Ended(Refused):
    """The execution has ended, or its workflow never started."""


class Gone(Ended):
    """Temporal has no running workflow of the execution."""

    def __init__(self) -> None:
        super().__init__("The execution has ended, or never started")


class Ending(EverstepError):
    """The execution is ending and its result is not stored yet; the request may be repeated."""

    def __init__(self) -> None:
        super().__init__("The execution is ending; try again in a moment")


class Pruned(NotFound):
    """The execution was removed because of its age."""

    def __init__(self, pruned: PrunedLedger) -> None:
        super().__init__("execution", pruned.execution_id)
        self.args = (
            f"The execution {pruned.execution_id} was pruned on {pruned.pruned_at:%F}: its rows were "
            f"removed. Its ledger had {pruned.entries} entries and ended with {pruned.hash}",
        )
