"""Signals of services that have only a Temporal client, carried out as the same requests over the API are.

The workflow passes the place of a signal in its history, and the activity here reads the payload and the
sender there. So the payload is in the history once, and its decoding cannot fail a workflow task.
"""

from typing import Any, TypeVar
from uuid import UUID

from pydantic import ValidationError
from temporalio import activity
from temporalio.api.history.v1 import WorkflowExecutionSignaledEventAttributes

from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Digest, Verdict
from everstep.agent_domain.capabilities.rights import ALL_SESSIONS, OPERATOR_SCOPES, TEMPORAL, Actor, Decider
from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import (
    EverstepError,
    InvalidInput,
    NotFound,
    NotPermitted,
    StoreUnavailable,
)
from everstep.agent_domain.storage.sessions import MAX_CONTENT
from everstep.agent_domain.stream.session_messages import limited_text
from everstep.client.client import Client
from everstep.client.errors import Ending
from everstep.client.execution import Execution, now
from everstep.workflows.contracts import PEOPLE_SIGNALS, SIGNAL_ACTIVITY, SignalInput, SignalReply

MAX_SIGNAL_BYTES = 256 * 1024
"""The size of a payload, as of a body over HTTP."""

MAX_IDENTITY = 200

SIGNALS_MAY_NOT_APPROVE = (
    f"A signal has the role '{TEMPORAL}', and scopes for decisions only with EVERSTEP_APPROVE_BY_SIGNAL=on"
)


class InputSignal(StrictModel):
    """The payload of `user_input` as an object."""

    text: str | None = None
    data: Any = None
    request_id: UUID | None = None


class ApproveSignal(StrictModel):
    """The payload of `approve`."""

    request_id: UUID
    decision: Verdict
    args_digest: Digest
    args: dict[str, Any] | None = None
    reason: str | None = None


class SignalEntry:
    """The activity that carries out signals.

    Args:
        client: The client of the worker's installation.
        may_approve: Whether signals decide about all calls; otherwise only about those that name the role
            `temporal`.
    """

    def __init__(self, client: Client, *, may_approve: bool = False) -> None:
        self.client = client
        self.may_approve = may_approve

    @activity.defn(name=SIGNAL_ACTIVITY)
    async def receive(self, given: SignalInput) -> SignalReply:
        """Carry out a signal; a repeated attempt changes nothing."""
        execution = Execution(self.client, given.ref)
        key = f"signal/{activity.info().workflow_run_id}/{given.number}"
        try:
            received = await self._find(given)
            values = await self._decode(received)
            by = self._actor(given.signal, received.identity)
            await self._carry_out(execution, given.signal, values, by, key)
        except (Ending, StoreUnavailable):
            # Retried by Temporal.
            raise
        except EverstepError as error:
            return SignalReply(str(error), type(error).__name__)
        activity.logger.info("the signal %s of %s is carried out", given.signal, by.subject)
        return SignalReply()

    async def _find(self, given: SignalInput) -> WorkflowExecutionSignaledEventAttributes:
        info = activity.info()
        handle = self.client.temporal.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        number = 0
        async for event in handle.fetch_history_events():
            attributes = event.workflow_execution_signaled_event_attributes
            number += attributes.signal_name in PEOPLE_SIGNALS
            if number == given.number:
                return attributes
        raise NotFound("signal", given.number)

    async def _decode(self, received: WorkflowExecutionSignaledEventAttributes) -> list[Any]:
        name, payloads = received.signal_name, received.input.payloads
        size = sum(len(payload.data) for payload in payloads)
        if size > MAX_SIGNAL_BYTES:
            raise InvalidInput(f"{name} has {size} bytes; send at most {MAX_SIGNAL_BYTES}")
        try:
            return await self.client.temporal.data_converter.decode(payloads)
        except EverstepError:
            raise
        except Exception as error:
            # Any client may send any bytes, and the decoders raise errors of many types.
            problem = f"{name} cannot be read ({type(error).__name__}); send JSON"
            raise InvalidInput(problem) from error

    def _actor(self, signal: str, identity: str) -> Actor:
        """Who sent a signal, as the sender says; it has no token to prove it."""
        claimed = "".join(each if each.isprintable() else "\ufffd" for each in identity[:MAX_IDENTITY])
        scopes = OPERATOR_SCOPES if self.may_approve else ()
        return Actor(
            f"{TEMPORAL}:{claimed or 'unknown'}",
            scopes if signal == "approve" else (ALL_SESSIONS,),
            (TEMPORAL,),
        )

    async def _carry_out(
        self, execution: Execution, name: str, values: list[Any], by: Actor, key: str
    ) -> None:
        match name, values:
            case "user_input", [str() | dict()]:
                answer = _parse_answer(values[0])
                await execution.submit_input(
                    answer.text or "", data=answer.data, request_id=answer.request_id, key=key, by=by
                )
            case "approve", [dict()]:
                await self._decide(execution, _parse(ApproveSignal, name, values[0]), by, key)
            case "steer", [str() as text]:
                if not limited_text("steer", text, MAX_CONTENT).strip():
                    raise InvalidInput("steer has no text; send the message for the agent")
                await execution.steer(text, key=key)
            case "cancel", [] | [None]:
                await execution.cancel(key=key, sent_by=Decider(by.subject, now(), roles=by.roles))
            case _:
                raise InvalidInput(f"{name} takes {_TAKES[name]}")

    async def _decide(self, execution: Execution, given: ApproveSignal, by: Actor, key: str) -> None:
        decided = given.model_dump(exclude={"request_id"})
        decision = ApprovalDecision.parse(decided)
        place: dict[str, Any] = {"args_digest": given.args_digest, "key": key, "by": by}
        try:
            if decision.args is not None:
                await execution.edit(decision.args, given.request_id, **place)
            elif decision.decision is Verdict.DENY:
                await execution.deny(given.request_id, reason=decision.reason, **place)
            else:
                await execution.approve(given.request_id, **place)
        except NotPermitted as error:
            if self.may_approve:
                raise
            raise NotPermitted(f"{error}. {SIGNALS_MAY_NOT_APPROVE}") from error


Parsed = TypeVar("Parsed", bound=StrictModel)

_TAKES = {
    "user_input": "one argument: a text, or an object {text | data, request_id?}",
    "approve": "one argument: an object {request_id, decision, args_digest, args?, reason?}",
    "steer": "one argument: a text",
    "cancel": "no argument",
}
"""The payload of each signal."""


def _parse_answer(value: Any) -> InputSignal:
    answer = InputSignal(text=value) if isinstance(value, str) else _parse(InputSignal, "user_input", value)
    if (answer.text is None) == (answer.data is None):
        raise InvalidInput(f"user_input takes {_TAKES['user_input']}: either text or data")
    limited_text("text", answer.text or "", MAX_CONTENT)
    return answer


def _parse(kind: type[Parsed], name: str, value: object) -> Parsed:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problem = f"{name} does not fit: {faults(error)}"
        raise InvalidInput(problem) from None
