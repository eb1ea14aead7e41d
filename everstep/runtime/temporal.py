"""The connection to Temporal: the encoding of values, and the detection of dead links."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, KeepAliveConfig
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter, pydantic_data_converter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadConverter,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from everstep.activities.contracts import WRITTEN_WITHOUT_DEFAULTS
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.shared_values import SharedValues
from everstep.runtime.codec import ENCODING, REFUSED_ENCODING, AesGcmCodec, PlainPayload
from everstep.runtime.embedded import SearchAttributeType
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import temporal_interceptors
from everstep.runtime.temporal_threads import temporal_runtime
from everstep.workflows import search_attributes
from everstep.workflows.contracts import ExecutionInput
from everstep.workflows.foreign_workflows import foreign_workflow_error
from everstep.workflows.scheduled_message import ScheduledRun

MAX_PAYLOAD_BYTES = 64 * 1024
"""Payloads hold only facts and references; a larger one is a mistake."""


class PayloadTooLarge(ApplicationError, EverstepError):
    """A payload for Temporal exceeds the size limit; another attempt would fail in the same way."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"a payload of {size} bytes; keep bodies in the store, not in history",
            type=type(self).__name__,
            non_retryable=True,
        )


class TemporalUnreachable(EverstepError):
    """The Temporal server does not answer; the message says what to check."""


class TemporalRefusal(TemporalUnreachable):
    """The Temporal server refuses this process with its current settings."""


_BRIEF_TYPES: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (*WRITTEN_WITHOUT_DEFAULTS, ExecutionInput)
}


class _BriefJson(PydanticJSONPlainPayloadConverter):
    """JSON that omits fields with default values, for the most frequent types."""

    def to_payload(self, value: object) -> Payload | None:
        """Return the value as JSON."""
        adapter = _BRIEF_TYPES.get(type(value))
        if adapter is None:
            return super().to_payload(value)
        if isinstance(value, ExecutionInput):
            # The plan is written in full: its defaults may change while the execution runs.
            usual = {f.name for f in fields(value) if getattr(value, f.name) == f.default}
            data = adapter.dump_json(value, exclude=usual, exclude_none=True)
        else:
            data = adapter.dump_json(value, exclude_defaults=True)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)


# One for all workflows: each has its own converter, and learning to decode a type takes longer than most of
# the converter's work.
_JSON = _BriefJson()

_plans: Final = SharedValues[ExecutionPlan]()


class GuardedPayloadConverter(CompositePayloadConverter):
    """Encodes values as brief JSON, and refuses those that would bloat a history."""

    def __init__(self) -> None:
        usual = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*(_JSON if isinstance(each, JSONPlainPayloadConverter) else each for each in usual))

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode payloads.

        Raises:
            PlainPayload: A payload is not encrypted, and has to be.
            ApplicationError: A workflow was started with foreign input; it fails without a retry.
        """
        try:
            return self._values(payloads, type_hints)
        except Exception as error:
            if type_hints == [ExecutionInput] and not names_an_execution(payloads[0]):
                raise foreign_workflow_error("its input does not say which execution it is") from error
            if type_hints == [ScheduledRun] and not names_a_schedule(payloads[0]):
                raise foreign_workflow_error("its input does not say which schedule it runs") from error
            raise

    def _values(self, payloads: Sequence[Payload], type_hints: list[type] | None) -> list[Any]:
        # An undecoded value is only passed on; decoding it later raises the refusal.
        is_read = any(hint is not RawValue for hint in type_hints or [None])
        if is_read and any(map(is_refused, payloads)):
            raise PlainPayload
        values = super().from_payloads(payloads, type_hints)
        return [_with_shared_plan(each) if isinstance(each, ExecutionInput) else each for each in values]

    def to_payloads(self, values: Sequence[object]) -> list[Payload]:
        """Encode values, each within the size limit."""
        payloads = super().to_payloads(values)
        for payload in payloads:
            if len(payload.data) > MAX_PAYLOAD_BYTES:
                raise PayloadTooLarge(len(payload.data))
        return payloads


def _with_shared_plan(start: ExecutionInput) -> ExecutionInput:
    plan = start.plan
    # The parameters of criteria are any JSON, of which 1, 1.0 and true are equal in Python.
    return replace(start, plan=_plans.share((plan.agent, repr(plan.criteria)), plan))


def names_a_schedule(payload: Payload) -> bool:
    """Return whether the undecodable run of a schedule was started by Everstep, like `names_an_execution`."""
    if payload.metadata.get("encoding") == ENCODING:
        return True
    try:
        return bool(UUID(json.loads(payload.data)["schedule_id"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def names_an_execution(payload: Payload) -> bool:
    """Return whether an undecodable workflow was started by Everstep, in a newer version or with a key.

    Such a workflow is retried until a worker can decode it.
    """
    if payload.metadata.get("encoding") == ENCODING:
        return True
    try:
        given = json.loads(payload.data)
        return isinstance(given["plan"], dict) and bool(UUID(given["ref"]["execution_id"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


class GuardedFailureConverter(DefaultFailureConverterWithEncodedAttributes):
    """Encrypts the texts of failures, and reads failures that the Temporal server has written.

    The server encrypts nothing: it says, for example, that a cancelled activity had not started. Such details
    are dropped. If they were refused like other plain payloads, the workflow's task would fail again and
    again.
    """

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Return the exception of a failure, without details that are not encrypted."""
        name = failure.WhichOneof("failure_info")
        info = getattr(failure, name) if name else None
        for field in ("details", "last_heartbeat_details"):
            details: Payloads | None = getattr(info, field, None)
            if details and any(is_refused(payload) for payload in details.payloads):
                failure = Failure.FromString(failure.SerializeToString())
                getattr(failure, name or "").ClearField(field)
        return super().from_failure(failure, payload_converter)


def is_refused(payload: Payload) -> bool:
    """Return whether a payload is not encrypted, and has to be."""
    return payload.metadata.get("encoding") == REFUSED_ENCODING


def data_converter(payload_key: str | None = None, *, accepts_plain: bool = False) -> DataConverter:
    """Return the converter of Everstep's values; with a key, payloads are encrypted."""
    guarded = replace(pydantic_data_converter, payload_converter_class=GuardedPayloadConverter)
    if payload_key is None:
        return guarded
    return replace(
        guarded,
        payload_codec=AesGcmCodec.of(payload_key, accepts_plain=accepts_plain),
        failure_converter_class=GuardedFailureConverter,
    )


KEEP_ALIVE = KeepAliveConfig(interval_millis=11_000, timeout_millis=3_000)
"""The server closes a connection that sends keep-alive pings more often than every 10 seconds."""


async def connect(settings: Settings) -> Client:
    """Connect a client.

    Raises:
        TemporalUnreachable: No server answered; the message has the address.
    """
    address = settings.require("temporal_address", "set TEMPORAL_ADDRESS, or run `everstep up`")
    if "://" in address:
        raise TemporalRefusal(
            f"TEMPORAL_ADDRESS is '{address}', a URL: name host and port only, such as temporal:7233; "
            "EVERSTEP_TEMPORAL_TLS=true switches TLS on"
        )
    try:
        return await Client.connect(
            address,
            namespace=settings.temporal_namespace,
            api_key=settings.temporal_api_key,
            tls=settings.temporal_tls or None,
            data_converter=data_converter(settings.payload_key, accepts_plain=settings.accept_plain_payloads),
            keep_alive_config=KEEP_ALIVE,
            runtime=temporal_runtime(),
            interceptors=temporal_interceptors(),
        )
    except ValueError as error:
        raise TemporalRefusal(f"TEMPORAL_ADDRESS is '{address}', which is not an address: {error}") from error
    except (RPCError, RuntimeError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, text: str) -> TemporalUnreachable:
    """Return an error with advice, chosen by the text of the SDK's error."""
    if "Unauthenticated" in text or "PermissionDenied" in text:
        return TemporalRefusal(
            f"the Temporal server at {address} refuses this process: check TEMPORAL_API_KEY"
        )
    if "InvalidContentType" in text:
        return TemporalRefusal(
            f"the Temporal server at {address} does not speak TLS, which a TEMPORAL_API_KEY asks for, "
            "and so does EVERSTEP_TEMPORAL_TLS: unset them, or check the address"
        )
    known = {"ConnectionRefused": "the connection is refused", "dns error": "the name is not known"}
    why = next((words for sign, words in known.items() if sign in text), " ".join(text.split()))
    return TemporalUnreachable(
        f"no Temporal server answers at {address} ({why}); is it running, and is the address right?"
    )


STICKY = timedelta(seconds=2)
# A cancel arrives with a heartbeat's response, and has to reach a stream in under a second.
HEARTBEAT_THROTTLE = timedelta(seconds=0.5)

SEARCH_ATTRIBUTES: dict[str, SearchAttributeType] = {key.name: "Keyword" for key in search_attributes.ALL}
"""The search attributes of executions in Temporal; only ids and fixed words."""
