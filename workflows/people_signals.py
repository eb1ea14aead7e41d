"""Signals of services that have only a Temporal client: answers, decisions, messages and cancels.

The payloads are not decoded here, so none can fail a workflow task. An activity reads them from the history,
and does what the API does: it validates, stores, and sends the update (`updates.py`).
"""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from everstep.agent_domain.nearest import did_you_mean
    from everstep.workflows.activity_options import SIGNAL
    from everstep.workflows.contracts import (
        PEOPLE_SIGNALS,
        SIGNAL_ACTIVITY,
        ExecutionInput,
        RefusedSignal,
        SignalInput,
        SignalReply,
    )
    from everstep.workflows.execution_base import ExecutionBase

SIGNALS_ARE_CARRIED_OUT = "signals-are-carried-out"
"""Patch id. Older releases ignored these signals, and their histories have no activity for them."""

MAX_WAITING = 100
"""Signals that wait for earlier ones; further ones are refused, so that the execution can end."""
MAX_REFUSED = 20
"""Refused signals that are shown: the last ones."""
MAX_NAME = 100
MAX_REASON = 300


class SignalHandlers(ExecutionBase):
    """The part of an execution that receives signals of people."""

    def __init__(self, start: ExecutionInput) -> None:
        super().__init__(start)
        self.received_signals = 0
        self.waiting_signals = 0
        self.signal_order = asyncio.Lock()
        """Held while a signal is carried out, so that answers are taken in the order in which they came."""

    @workflow.signal(dynamic=True)
    async def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Carry out a signal, or show why it was refused."""
        del args
        if name not in PEOPLE_SIGNALS:
            self.refuse_signal(
                name,
                f"nothing handles this signal; send one of: {', '.join(PEOPLE_SIGNALS)}"
                f"{did_you_mean(name[:MAX_NAME], PEOPLE_SIGNALS)}",
            )
            return
        # Each one counts, also a refused one: the number is its place in the history.
        self.received_signals += 1
        number = self.received_signals
        if not workflow.patched(SIGNALS_ARE_CARRIED_OUT):
            self.refuse_signal(name, "an older release ignored signals; send an update, or use everstep.act")
        elif name == "cancel":
            await self.carry_out_signal(name, number)
        elif self.waiting_signals >= MAX_WAITING:
            self.refuse_signal(name, f"{MAX_WAITING} earlier signals are not carried out yet; send it later")
        else:
            self.waiting_signals += 1
            async with self.signal_order:
                await self.carry_out_signal(name, number)
            self.waiting_signals -= 1

    async def carry_out_signal(self, name: str, number: int) -> None:
        """Let an activity validate, store and deliver what the signal says."""
        try:
            reply = await workflow.execute_activity(
                SIGNAL_ACTIVITY,
                SignalInput(self.start.ref, name, number),
                result_type=SignalReply,
                summary=f"signal {number} · {name}",
                **SIGNAL,
            )
        except ActivityError as error:
            # Otherwise the error would end the execution.
            kind = type(error.cause or error).__name__
            reply = SignalReply(f"it could not be carried out: {kind}", kind)
        if reply.refusal is not None:
            self.refuse_signal(name, reply.refusal, reply.error_type)

    def refuse_signal(self, name: str, reason: str, error_type: str | None = None) -> None:
        """Show a refused signal in the query `state`, and log it without texts of people or models."""
        refused = RefusedSignal(name[:MAX_NAME], reason[:MAX_REASON], workflow.now())
        self.refused = (*self.refused, refused)[-MAX_REFUSED:]
        workflow.logger.warning(
            "the signal %s is refused (%s); the query `state` has the reason",
            refused.signal,
            error_type or reason[:MAX_REASON],
        )
