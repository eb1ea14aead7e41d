"""The errors of a client.

EverstepError
+-- Taken
+-- Refused
|   +-- Ended
|       +-- Gone
+-- Ending
"""

from uuid import UUID

from everstep.agent_domain.errors import EverstepError


class Taken(EverstepError):
    """The execution of this id was accepted for another request; nothing was changed."""

    def __init__(self, execution_id: UUID) -> None:
        super().__init__(f"The execution {execution_id} was accepted for another request; draw another id")


class Refused(EverstepError):
    """The execution does not accept this now; the message says why. Nothing was changed."""


class Ended(Refused):
    """The execution has ended, or its workflow never began."""


class Gone(Ended):
    """Temporal has no workflow of the execution that could hear it."""

    def __init__(self) -> None:
        super().__init__("The execution has ended, or never began")


class Ending(EverstepError):
    """The execution is ending, and it is not stored yet how; the same request may be sent again."""

    def __init__(self) -> None:
        super().__init__("The execution is ending; ask again in a moment")
