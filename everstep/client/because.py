"""Explains an execution from what is recorded of it; see `agent_domain/explanation`."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from everstep.agent_domain.explanation.because import (
    ExecutionBecause,
    StepBecause,
    StepExplainer,
    execution_sentence,
)
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow, Page
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow

if TYPE_CHECKING:
    # `client` imports this module.
    from everstep.client.client import Client


_MAY_BE_HELD = frozenset({ExecutionStatus.PENDING, ExecutionStatus.RUNNING})

ExplainedStep: TypeAlias = tuple[StepRow, StepBecause]
"""A step, and why it was followed by another one or by none."""


@dataclass(frozen=True, slots=True)
class ExplainedPage:
    """A page of steps, with the because of each."""

    steps: Page[StepRow]
    explainer: StepExplainer

    @property
    def because(self) -> tuple[StepBecause, ...]:
        """The because of each step."""
        return self.explainer.explain_all(self.steps.rows)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentence of each step."""
        return self.explainer.sentences(self.steps.rows)


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
        explainer = await self._explainer(await self.get(), in_full=in_full)
        steps, last = list[StepBecause](), None
        async for explained in self._explain_each(explainer):
            last, because = explained
            steps.append(because)
        return ExecutionBecause(execution_sentence(explainer, last), tuple(steps))

    async def sentence(self, row: ExecutionRow, *, in_full: bool = True, has_content: bool = True) -> str:
        """Why it ended, or what it waits for; only its last step is read.

        Args:
            row: The execution.
            in_full: Whether the sentence contains the texts of errors.
            has_content: Whether it contains what models and tools wrote, such as the arguments of calls.
        """
        explainer = replace(await self._explainer(row, in_full=in_full), has_content=has_content)
        return execution_sentence(explainer, await self._last_step())

    async def each_explained_step(
        self, row: ExecutionRow, *, in_full: bool = True
    ) -> AsyncGenerator[ExplainedStep]:
        """Iterate over the steps, each with its because; each step is read once.

        Args:
            row: The execution.
            in_full: Whether sentences contain the texts of errors.
        """
        async for explained in self._explain_each(await self._explainer(row, in_full=in_full)):
            yield explained

    async def _explain_each(self, explainer: StepExplainer) -> AsyncGenerator[ExplainedStep]:
        """A step is explained with the one that follows it."""
        last = None
        async for step in self.each_step():
            if last is not None:
                yield last, explainer.explain(last, step)
            last = step
        if last is not None:
            yield last, explainer.explain(last)

    async def _last_step(self) -> StepRow | None:
        return next(iter(await self.client.store.steps(self.ref, last=1)), None)

    async def explained_steps(
        self, row: ExecutionRow, after: int = 0, limit: int = 50, *, in_full: bool = False
    ) -> ExplainedPage:
        """Read a page of the steps after the given one, to explain them.

        Args:
            row: The execution.
            after: The number of the step before the page.
            limit: The maximum number of steps.
            in_full: Whether sentences contain the texts of errors.
        """
        page = await self.client.store.steps_after(self.ref, after, limit)
        explains_all = page.cursor is None
        return ExplainedPage(page, await self._explainer(row, in_full=in_full, has_last_step=explains_all))

    async def because_page(
        self, row: ExecutionRow, after: int = 0, limit: int = 50, *, in_full: bool = False
    ) -> tuple[ExecutionBecause, str | None]:
        """The because of the execution with a page of its steps, and the `after` of the next page.

        The arguments are those of `explained_steps`.
        """
        page = await self.explained_steps(row, after, limit, in_full=in_full)
        last = page.steps.rows[-1] if page.steps.rows else None
        explainer = page.explainer
        if page.steps.cursor is not None or last is None:
            explainer = await self._explainer(row, in_full=in_full)
            last = await self._last_step()
        return ExecutionBecause(execution_sentence(explainer, last), page.because), page.steps.cursor

    async def _explainer(
        self, row: ExecutionRow, *, in_full: bool, has_last_step: bool = True
    ) -> StepExplainer:
        requests: Sequence[RequestRow] = ()
        limit: str | None = None
        if has_last_step and not row.status.is_terminal:
            requests = await self.client.store.open_requests(self.ref)
            limit = None if requests else await self._limit_of(row)
        return StepExplainer(row, datetime.now(UTC), tuple(requests), in_full, limit=limit)

    async def _limit_of(self, row: ExecutionRow) -> str | None:
        """What an execution waits for because of a limit, unless it waits for something else."""
        is_held = row.status in _MAY_BE_HELD and not row.ahead
        if self.client.limits is None or not is_held:
            return None
        user = row.ref.tenant_id, row.user_id
        waits = (await self.client.limits.find_waits([user]))[user]
        return waits.call if row.queue_position is None else waits.start
