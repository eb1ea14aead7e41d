"""The tenant and the user for whom the current task works, for calls that wait for a shared rate."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from everstep.agent_domain.fairness.shares import Claimant

NO_CLAIMANT: Final = Claimant("", "")
"""Work that belongs to no tenant, such as the titles of sessions."""

_current: Final = ContextVar("current_claimant", default=NO_CLAIMANT)


def current_claimant() -> Claimant:
    """Return the user for whom this task works."""
    return _current.get()


@contextmanager
def working_as(claimant: Claimant) -> Generator[None]:
    """Work for a user within the block."""
    token = _current.set(claimant)
    try:
        yield
    finally:
        _current.reset(token)
