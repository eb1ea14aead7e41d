"""Explains an execution from what is recorded of it; see `agent_domain/explanation`."""

from abc import abstractmethod
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from everstep.agent_domain.explanation.because import (
    ExecutionBecause,
    StepBecause,
    StepExplainer,
    execution_sentence,
)
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.steps import StepRow

if TYPE_CHECKING:
    # `client` imports this module.
    from everstep.client.client import Client


class ExecutionReader:
    """The part of the handle of an execution that explains it."""

    client: "Client"
    ref: ExecutionRef

    @abstractmethod
    async def get(self) -> ExecutionRow:
        """Read the execution."""

    @abstractmethod
    def each_step(self, after: int = 0) -> AsyncGenerator[StepRow]:
        """Iterate over the steps after the given one."""

    async def because(self, *, in_full: bool = True) -> ExecutionBecause:
        """Why it ended, or what it waits for, and why each of its steps was followed.

        Args:
            in_full: Whether sentences contain the texts of errors, or those for every viewer.

        Raises:
            NotFound: There is no such execution.
        """
        row = await self.get()
        requests = () if row.status.is_terminal else await self.client.store.open_requests(self.ref)
        explainer = StepExplainer(row, datetime.now(UTC), tuple(requests), in_full=in_full)
        explained, last = list[StepBecause](), None
        async for step in self.each_step():
            if last is not None:
                explained.append(explainer.explain(last, step))
            last = step
        if last is not None:
            explained.append(explainer.explain(last))
        return ExecutionBecause(execution_sentence(explainer, last), tuple(explained))
