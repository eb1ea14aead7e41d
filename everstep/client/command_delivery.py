"""Delivers the stored commands of an execution to its workflow: as updates, in order and idempotently."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import Command, CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.forced_end import closing_settlement
from everstep.agent_domain.storage.sessions import Settled
from everstep.client.errors import Ended, Ending, Gone, Refused
from everstep.client.outages import ErrorMeaning, is_missing, meaning_of
from everstep.workflows.contracts import CallReply, ExecutionResult

log = logging.getLogger(__name__)

TIMEOUTS = (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError)
"""The exceptions of a timeout; the second is raised by Temporal's client or server."""

DELIVERY_SECONDS = 5.0
"""The time limit for a starting execution to accept earlier commands."""

ENDING_SECONDS = 0.05
ENDING_POLLS = 200
"""How often to poll for the stored end of an execution, which its workflow writes in its last step."""

_UPDATE_NAMES = {
    CommandKind.INPUT: "submit_input",
    CommandKind.APPROVAL: "resolve_approval",
    CommandKind.BUDGET: "raise_budget",
    CommandKind.STEER: "steer",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.CANCEL: "cancel",
}
"""The names of the workflow's updates."""

_WITHDRAWABLE = frozenset({CommandKind.PAUSE, CommandKind.RESUME, CommandKind.CANCEL})
"""Commands that are withdrawn if the workflow refuses them."""
_OPEN = frozenset({WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW})
"""The statuses of a workflow that continues."""
PAUSES_AND_RESUMES = frozenset({CommandKind.PAUSE, CommandKind.RESUME})
"""Commands that are delivered in the order in which they were accepted."""


@dataclass(frozen=True, slots=True)
class CommandDelivery:
    """Delivers commands to the workflow of one execution."""

    store: ExecutionStore
    workflow: WorkflowHandle[Any, ExecutionResult]
    ref: ExecutionRef

    async def carry_out(self, command: Command, *, is_new: bool = False) -> Settled | None:
        """Carry out a stored command.

        Args:
            command: The command.
            is_new: Whether no earlier attempt can have carried it out.

        Returns:
            The end that it stored, if it cancelled an execution whose workflow is gone; what follows the end
            is left to the caller, or to the reconciler.

        Raises:
            Refused: It cannot be carried out. It is withdrawn, and nothing was changed.
        """
        earlier = await self._earlier_commands(command) if command.kind in PAUSES_AND_RESUMES else []
        for each in earlier:
            with suppress(Refused):
                await self._carry_out(each, is_new=False)
        follows_pause = any(each.kind is CommandKind.PAUSE for each in earlier)
        return await self._carry_out(command, is_new=is_new, follows_pause=follows_pause)

    async def deliver_pending(self) -> None:
        """Deliver what was stored before the workflow started; the reconciler delivers what is left."""
        try:
            async with asyncio.timeout(DELIVERY_SECONDS):
                for command in await self.store.pending_commands(self.ref):
                    with suppress(Refused, Ending):
                        await self.carry_out(command)
        except (*TIMEOUTS, RPCError) as error:
            log.warning(
                "commands of the execution %s are not delivered yet: %s", self.ref.execution_id, error
            )

    async def _carry_out(
        self, command: Command, *, is_new: bool, follows_pause: bool = False
    ) -> Settled | None:
        try:
            if command.kind is CommandKind.CANCEL:
                return await self._cancel(command)
            await self.deliver(command)
        except Ended:
            # Otherwise a pause that waits for the start of the workflow would hold it forever.
            if command.kind not in _WITHDRAWABLE or follows_pause:
                return None
            if command.kind is CommandKind.PAUSE and await self._is_pending():
                # The command stays stored, and the workflow starts paused.
                return None
            if is_new or command.kind is CommandKind.CANCEL:
                await self.store.withdraw(command)
                raise
            if not await self._is_pending():
                # An earlier attempt may have been delivered.
                await self.store.confirm_delivery(command)
        except Refused:
            await self.store.withdraw(command)
            raise
        return None

    async def _is_pending(self) -> bool:
        return (await self._load_execution()).status is ExecutionStatus.PENDING

    async def _earlier_commands(self, command: Command) -> list[Command]:
        """Undelivered pauses and resumes that were accepted before this command.

        They are delivered first. Otherwise a resume would be refused because the pause before it has not
        arrived yet, and that pause would be delivered later and hold the execution forever.
        """
        waiting = await self.store.pending_commands(self.ref)
        before = takewhile(lambda each: each.key != command.key, waiting)
        return [each for each in before if each.kind in PAUSES_AND_RESUMES]

    async def cancel_pending(self, command: Command) -> bool:
        """Cancel an execution that has not started; return False if it has."""
        cancellation = replace(closing_settlement(self.ref, ExecutionStatus.CANCELLED), only_pending=True)
        if not await self.store.settle(cancellation):
            return False
        await self.store.confirm_delivery(command)
        # Its workflow may have been started a moment ago; it then ends without doing anything.
        with suppress(RPCError):
            await self.workflow.cancel()
        return True

    async def _cancel(self, command: Command) -> Settled | None:
        try:
            await self.deliver(command)
        except Ended as error:
            if await self.cancel_pending(command):
                return None
            # Another cancel may have been faster, or an earlier attempt of this one whose response was lost.
            # A workflow closes after its end is stored; one that still runs may be about to store it.
            is_gone = isinstance(error, Gone)
            row = await (self._load_execution() if is_gone else self.wait_for_end())
            if is_gone and not row.status.is_terminal:
                settled = await self._cancel_without_workflow(row)
                if settled:
                    await self.store.confirm_delivery(command)
                    return settled
                row = await self._load_execution()
            if row.status is not ExecutionStatus.CANCELLED:
                raise
            await self.store.confirm_delivery(command)
        return None

    async def _cancel_without_workflow(self, row: ExecutionRow) -> Settled | None:
        """Cancel an execution whose workflow was deleted, or closed without storing an end.

        Returns:
            What follows; None if another process has just stored an end.

        Raises:
            Ending: Its workflow runs: it has just been started.
        """
        try:
            status = (await self.workflow.describe()).status
        except RPCError as error:
            if not is_missing(error):
                raise
            status = None
        if status in _OPEN:
            # The command stays stored, and the reconciler delivers it.
            raise Ending
        # The handle may lack the session, whose next execution is released.
        cancellation = closing_settlement(row.ref, ExecutionStatus.CANCELLED, step_count=row.step_count)
        settled = await self.store.settle(cancellation)
        if settled:
            how = "is not in Temporal" if status is None else f"is {status.name.lower()}"
            log.warning("cancelled the execution %s, whose workflow %s", self.ref.execution_id, how)
        return settled

    async def wait_for_end(self) -> ExecutionRow:
        """Wait until the end of an execution is stored, whose workflow is closing.

        Raises:
            Ending: The end is not stored in time.
        """
        for _ in range(ENDING_POLLS):
            row = await self._load_execution()
            if row.status.is_terminal:
                return row
            await asyncio.sleep(ENDING_SECONDS)
        raise Ending

    async def deliver(self, command: Command) -> None:
        """Send a command to the workflow, and store that it was delivered.

        Raises:
            Ended: The workflow has ended, or was never started.
            Refused: The workflow does not accept it now.
        """
        args = (CallReply(command.call_id, command.is_denied),) if command.call_id else ()
        try:
            await self._update(_UPDATE_NAMES[command.kind], command.key, *args)
        except Ended:
            is_left = (
                command.kind in _WITHDRAWABLE
                or (await self._load_execution()).status is ExecutionStatus.PENDING
            )
            if not is_left:
                await self.store.confirm_delivery(command)
            raise
        # The end of the execution marks a cancel.
        if command.kind is not CommandKind.CANCEL:
            await self.store.confirm_delivery(command)

    async def _update(self, update: str, key: str | None = None, *args: CallReply) -> None:
        try:
            # By name: the updates have no common type.
            workflow: Any = self.workflow
            await workflow.execute_update(update, args=args, id=key)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type == "NotWaiting":
                # Another caller's identical answer came first, and the execution has continued. Or this is
                # the outcome of an early delivery, to a workflow that ran again from its records.
                if key is not None:
                    await self._update(update, None, *args)
                return
            # The text of an `ApplicationError` begins with its type, which means nothing to users.
            why = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
            has_ended = isinstance(cause, ApplicationError) and cause.type == "AlreadyEnded"
            raise (Ended if has_ended else Refused)(why) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK turns a cancellation into an ordinary exception. A caller that catches it would continue
            # after its task was cancelled or its timeout expired, and then wait without a limit.
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from error
            raise
        except RPCError as error:
            if meaning_of(error) is ErrorMeaning.NOT_NOW:
                raise Gone from error
            if error.status is RPCStatusCode.INTERNAL and args and key is not None:
                # After a reset, the server may know the id of an update whose outcome it does not have. A
                # second delivery changes nothing.
                await self._update(update, None, *args)
                return
            raise

    async def _load_execution(self) -> ExecutionRow:
        row = await self.store.execution(self.ref)
        if row is None:
            raise NotFound("execution", self.ref.execution_id)
        return row
