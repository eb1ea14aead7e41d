"""A blocking client for programs without an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from everstep.agent_domain.explanation.because import ExecutionBecause
from everstep.agent_domain.storage.commands import Steering
from everstep.agent_domain.storage.comparison import Comparison
from everstep.agent_domain.storage.executions import ExecutionRow, Page
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.storage.text_search import TextHit
from everstep.client.client import Client
from everstep.client.execution import Execution
from everstep.workflows.contracts import ExecutionResult

T = TypeVar("T")


class SyncClient:
    """A `Client` whose calls block. It runs its own event loop in a thread.

        with SyncClient(open_client) as client:
            row = client.run("travel", "Book me a trip")

    `open_client` opens a client in that loop and closes it on exit.
    """

    def __init__(self, open_client: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self._open = open_client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everstep client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._opened = self._open()
        self._client = self._do(self._opened.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._opened.__aexit__(kind, error, trace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, agent: str, message: str, **given: Any) -> "SyncExecution":
        """`Client.start`."""
        return SyncExecution(self._do, self._do(self._client.start(agent, message, **given)))

    def run(self, agent: str, message: str, **given: Any) -> ExecutionRow:
        """`Client.run`."""
        return self._do(self._client.run(agent, message, **given))

    def execution(self, execution_id: UUID | str) -> "SyncExecution":
        """`Client.execution`."""
        return SyncExecution(self._do, self._client.execution(execution_id))

    def list(self, **given: Any) -> Page[ExecutionRow]:
        """`Client.list`."""
        return self._do(self._client.list(**given))

    def search(self, text: str, **given: Any) -> Page[TextHit]:
        """`Client.search`."""
        return self._do(self._client.search(text, **given))

    def diff(self, a: UUID | str, b: UUID | str) -> Comparison:
        """`Client.diff`."""
        return self._do(self._client.diff(a, b))


class SyncExecution:
    """An `Execution` whose calls block."""

    def __init__(self, do: Callable[[Coroutine[Any, Any, Any]], Any], execution: Execution) -> None:
        self._do = do
        self._execution = execution
        self.id = execution.id

    def get(self) -> ExecutionRow:
        """`Execution.get`."""
        return self._do(self._execution.get())

    def steps(self) -> Sequence[StepRow]:
        """`Execution.steps`."""
        return self._do(self._execution.steps())

    def steps_after(self, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """`Execution.steps_after`."""
        return self._do(self._execution.steps_after(after, limit))

    def because(self, **given: Any) -> ExecutionBecause:
        """`Execution.because`."""
        return self._do(self._execution.because(**given))

    def result(self) -> ExecutionResult:
        """`Execution.result`."""
        return self._do(self._execution.result())

    def requests(self) -> Sequence[RequestRow]:
        """`Execution.requests`."""
        return self._do(self._execution.requests())

    def submit_input(self, text: str = "", **given: Any) -> RequestRow:
        """`Execution.submit_input`."""
        return self._do(self._execution.submit_input(text, **given))

    def approve(self, **given: Any) -> RequestRow:
        """`Execution.approve`."""
        return self._do(self._execution.approve(**given))

    def deny(self, **given: Any) -> RequestRow:
        """`Execution.deny`."""
        return self._do(self._execution.deny(**given))

    def edit(self, args: Mapping[str, Any], **given: Any) -> RequestRow:
        """`Execution.edit`."""
        return self._do(self._execution.edit(args, **given))

    def steer(self, message: str, **given: Any) -> Steering:
        """`Execution.steer`."""
        return self._do(self._execution.steer(message, **given))

    def pause(self, **given: Any) -> None:
        """`Execution.pause`."""
        self._do(self._execution.pause(**given))

    def resume(self, **given: Any) -> None:
        """`Execution.resume`."""
        self._do(self._execution.resume(**given))

    def cancel(self, **given: Any) -> None:
        """`Execution.cancel`."""
        self._do(self._execution.cancel(**given))
