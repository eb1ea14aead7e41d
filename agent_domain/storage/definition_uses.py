"""Which definitions of an agent its executions began with."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from everstep.agent_domain.ids import Scope


@dataclass(frozen=True, slots=True)
class DefinitionUse:
    """A definition, by its digest, and the executions that began with it."""

    definition_hash: str | None
    executions: int
    first_at: datetime
    last_at: datetime


ReadDefinitionUses: TypeAlias = Callable[[Scope, str], Awaitable[Sequence[DefinitionUse]]]
"""Reads the definitions of an agent among its newest executions of a scope, the latest definition first."""
