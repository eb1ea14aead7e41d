"""The host of a replay as a Temporal client."""

from collections.abc import Sequence
from typing import Any

from everstep.runtime.replay.host import TemporalHost


class HostHandle:
    """A workflow of the host, with the methods of `WorkflowHandle` that Everstep's client uses."""

    def __init__(self, host: TemporalHost, workflow_id: str) -> None:
        self._host = host
        self.id = workflow_id

    async def execute_update(self, name: str, *, args: Sequence[Any] = (), id: str | None = None) -> None:  # noqa: A002 -- the SDK's name
        """Send an update, and wait until it is done."""
        await self._host.update(self.id, name, id or name, args)

    async def cancel(self) -> None:
        """Request the cancellation of the workflow."""
        await self._host.cancel(self.id)


class HostClient:
    """The host as a Temporal client, with the methods that Everstep's client uses."""

    def __init__(self, host: TemporalHost) -> None:
        self._host = host

    def get_workflow_handle_for(self, _run: Any, workflow_id: str) -> HostHandle:
        """The handle of a workflow."""
        return HostHandle(self._host, workflow_id)

    def get_workflow_handle(self, workflow_id: str, **_options: Any) -> HostHandle:
        """The handle of a workflow."""
        return HostHandle(self._host, workflow_id)

    async def start_workflow(
        self,
        _run: Any,
        argument: Any,
        *,
        id: str,  # noqa: A002 -- the SDK's name
        **_options: Any,
    ) -> None:
        """Start a workflow."""
        await self._host.start(id, argument)
