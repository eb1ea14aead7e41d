"""Turns the events of a running agent into envelopes for its viewers.

The adapter decides which envelopes are sent and in which order: a status only when it changes, the trace
before the status that ends the execution, no text of an attempt that was given up. It neither stores nor
numbers envelopes: the broadcaster does, and knows which stored envelope a chunk follows.

Ids are derived from the content of an envelope, so the same events give the same ids. An adapter that is used
for several runs adds the number of the run to them, because every run begins with step 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from inspect import iscoroutinefunction
from typing import Protocol, cast
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.status import WireStatus, final_situation
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    Event,
    Listener,
    StreamEventReceived,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallStarted,
)
from everstep.agent_domain.storage.executions import execution_output
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.stream.envelopes import Attempt, Envelope, channel_name
from everstep.agent_domain.stream.progress_records import call_progress_record
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.progress import PROGRESS_SECONDS, Progress
from everstep.agent_domain.values import FrozenDict, uuid_or_text


class CanBroadcastAgentEvents(Protocol):
    """Sends envelopes to the subscribers of a channel."""

    def broadcast(self, channel: str, envelope: Envelope) -> object:
        """Send one envelope; a transport may put a prefix before the channel."""
        ...


@dataclass
class _TextStream:
    """The progress of the text of one attempt."""

    attempt: Attempt
    sent: int = 0
    is_closed: bool = False


@dataclass
class _Run:
    """The adapter's state for one run, from its first step to its end."""

    number: int = 1
    changes: int = 0
    progress: dict[str, tuple[datetime, int]] = field(default_factory=dict[str, tuple[datetime, int]])
    """When each call was last reported on, and how often."""
    step_count: int = 0
    is_over: bool = False
    cost_usd: Decimal | None = None
    stream: _TextStream = field(default_factory=lambda: _TextStream(Attempt(0)))


class EventEnvelopeAdapter:
    """Sends the events of one execution as envelopes, on the channel of its session.

    Args:
        broadcaster: Receives the channel and each envelope.
        session_id: The session, or None for an execution outside of sessions.
        execution_id: The execution.
        config: Selects which envelopes are sent.
        clock: Returns the current time.

    Raises:
        InvalidInput: The broadcaster has no plain method `broadcast`, or an id is invalid.
    """

    def __init__(
        self,
        broadcaster: CanBroadcastAgentEvents,
        session_id: UUID | str | None,
        execution_id: UUID | str,
        config: BroadcastConfig | None = None,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        send = getattr(broadcaster, "broadcast", None)
        if not callable(send):
            raise InvalidInput(
                f"a broadcaster needs a method broadcast(channel, envelope); {broadcaster!r} has none"
            )
        if iscoroutinefunction(send):
            raise InvalidInput(
                "a broadcaster is called synchronously and cannot be awaited; make broadcast of "
                f"{broadcaster!r} a plain method, such as one that puts the envelope into a queue"
            )
        self.broadcaster = broadcaster
        # Texts that an application uses as ids are kept unchanged, also in envelopes.
        self.session_id = None if session_id is None else cast("UUID", uuid_or_text(session_id, "session_id"))
        self.execution_id = cast("UUID", uuid_or_text(execution_id, "execution_id"))
        self.config = config or BroadcastConfig.standard()
        self._clock = clock
        self._status = WireStatus.IDLE
        self._run = _Run()

    @property
    def channel(self) -> str:
        """The channel of the envelopes."""
        return channel_name(self.session_id, self.execution_id)

    def wiretap(self) -> Listener:
        """A listener for every event of an agent: `agent.wiretap(adapter.wiretap())`."""
        return self._on_event

    def _on_event(self, event: Event) -> None:
        match event:
            case StreamEventReceived():
                self.on_stream_chunk(event)
            case AgentStepStarted():
                self.on_agent_step_started(event)
            case AgentStepCompleted():
                self.on_agent_step_completed(event)
            case ToolCallStarted():
                self.on_tool_call_started(event)
            case ToolCallProgressed():
                self.on_tool_call_progressed(event)
            case ToolCallCompleted():
                self.on_tool_call_completed(event)
            case ContinuationEvaluated():
                self.on_continuation_evaluated(event)
            case AgentFailed():
                self.on_agent_failed(event)
            case _:
                pass

    # Steps and tool calls.

    def on_agent_step_started(self, event: AgentStepStarted) -> None:
        """A step begins."""
        self._enter_step(event.step_number)
        self._run.step_count = event.step_number - 1
        self._update_status(WireStatus.PROCESSING, event.at)
        record = envelopes.step_started_record(event.step_number, event.message_count, event.available_tools)
        self._send(record, event.at)

    def on_agent_step_completed(self, event: AgentStepCompleted) -> None:
        """A step is recorded."""
        self._run.step_count = event.step_number
        record = envelopes.step_completed_record(
            event.step_number,
            has_tool_calls=event.has_tool_calls,
            errors=event.error_count,
            finish_reason=event.finish_reason,
            usage=event.usage,
            duration_ms=event.duration_ms,
            outcome=event.continuation,
            trace=self.config.include_continuation_trace,
            cost_usd=event.cost_usd,
        )
        self._send(record, event.at)

    def on_tool_call_progressed(self, event: ToolCallProgressed) -> None:
        """A tool says how far its call is; viewers receive about one report a second of each call."""
        last = self._run.progress.get(event.tool_call_id)
        if last is not None and (event.at - last[0]).total_seconds() < PROGRESS_SECONDS:
            return
        number = 1 if last is None else last[1] + 1
        self._run.progress[event.tool_call_id] = event.at, number
        progress = Progress(event.text, event.fraction)
        record = call_progress_record(event.step_number, event.tool_call_id, event.tool, progress, key=number)
        self._send(record, event.at)

    def on_tool_call_started(self, event: ToolCallStarted) -> None:
        """A tool call begins."""
        record = envelopes.tool_started_record(
            event.tool_call_id,
            event.tool,
            event.args,
            step_number=self._run.stream.attempt.step_number,
            max_arg_length=self.config.max_arg_length if self.config.include_tool_args else None,
        )
        self._send(record, event.at)

    def on_tool_call_completed(self, event: ToolCallCompleted) -> None:
        """A tool call has its result."""
        record = envelopes.tool_completed_record(
            event.tool_call_id,
            event.tool,
            step_number=self._run.stream.attempt.step_number,
            success=event.success,
            error=event.error,
            duration_ms=event.duration_ms,
            result=event.result,
            attachments=event.attachments,
        )
        self._send(record, event.at)

    # The execution as a whole.

    def on_continuation_evaluated(self, event: ContinuationEvaluated) -> None:
        """The criteria decided whether another step follows; if none does, the execution ends."""
        if event.step_number == 0 and self._run.is_over:
            self._begin_run()
        self._run.step_count = event.step_number
        if self.config.include_continuation_trace:
            record = envelopes.continuation_record(event.step_number, event.outcome, event.because)
            self._send(record, event.at)
        if event.should_continue:
            return
        self._run.is_over, self._run.cost_usd = True, event.cost_usd
        if not _has_failure_to_come(event):
            status = final_situation(event.status, event.stop_reason).wire
            error = _error_text(event) if status is WireStatus.FAILED else None
            has_result = event.output is not None
            output = (
                execution_output(event.last_response, event.stop_reason, event.output) if has_result else None
            )
            self._update_status(status, event.at, error, event.last_response, output)

    def on_agent_failed(self, event: AgentFailed) -> None:
        """The execution ended as failed."""
        self._run.is_over, self._run.cost_usd = True, event.cost_usd
        self._run.step_count = event.steps_completed
        self._update_status(WireStatus.FAILED, event.at, event.exception)

    def on_agent_paused(self) -> None:
        """The execution waits."""
        self._update_status(WireStatus.PAUSED, self._clock())

    def on_agent_resumed(self) -> None:
        """The execution resumes."""
        self._update_status(WireStatus.PROCESSING, self._clock())

    def on_agent_status_changed(
        self, status: WireStatus | str, error: str | None = None, last_response: str | None = None
    ) -> None:
        """Send this status, even if it did not change."""
        wire_status = _wire_status(status)
        self._run.is_over = self._run.is_over or wire_status.is_terminal
        self._send_status(wire_status, self._clock(), error, last_response)

    def reset(self) -> None:
        """Forget the current run; all later events belong to another run."""
        self._status = WireStatus.IDLE
        self._begin_run()

    # The model's text.

    def on_stream_chunk(
        self,
        chunk: StreamEventReceived | str,
        *,
        step_number: int | None = None,
        attempt: int | None = None,
        is_complete: bool = False,
    ) -> None:
        """The model wrote text, or finished writing.

        Args:
            chunk: The event, or a text.
            step_number: The step of a text; by default the step in progress.
            attempt: The attempt of a text; by default the attempt in progress.
            is_complete: Whether the text ends with this chunk; only used with a text.
        """
        if not self.config.include_stream_chunks:
            return
        if isinstance(chunk, StreamEventReceived):
            self._receive_text(
                Attempt(chunk.step_number, chunk.attempt), chunk.content, chunk.is_complete, chunk.at
            )
        else:
            self._receive_text(self._attempt_for(step_number, attempt), chunk, is_complete, self._clock())

    def on_attempt_superseded(self, next_attempt: int | None = None) -> None:
        """The model call in progress was given up; the next attempt starts again from the beginning."""
        given_up = self._run.stream.attempt
        self._supersede(given_up.number + 1 if next_attempt is None else next_attempt, self._clock())

    def _attempt_for(self, step_number: int | None, number: int | None) -> Attempt:
        """The attempt that a text belongs to; defaults come from the attempt in progress."""
        current = self._run.stream.attempt
        step = max(1, current.step_number) if step_number is None else step_number
        latest = current.number if step == current.step_number else 1
        return Attempt(step, latest if number is None else number)

    def _receive_text(self, attempt: Attempt, content: str, is_complete: bool, at: datetime) -> None:
        if attempt < self._run.stream.attempt:
            return  # Late text of an attempt that was given up, or of a step that is over.
        if attempt.step_number == self._run.stream.attempt.step_number:
            if attempt.number > self._run.stream.attempt.number:
                self._supersede(attempt.number, at)
        else:
            self._run.stream = _TextStream(attempt)
        stream = self._run.stream
        if content and not stream.is_closed:
            self._send_chunk(stream, content, at)
        if is_complete and stream.sent and not stream.is_closed:
            self._send_chunk(stream, "", at)

    def _send_chunk(self, stream: _TextStream, content: str, at: datetime) -> None:
        stream.is_closed = not content
        record = envelopes.stream_chunk_record(
            stream.attempt, stream.sent, content, is_complete=stream.is_closed
        )
        stream.sent += 1
        self._send(record, at)

    def _supersede(self, next_attempt: int, at: datetime) -> None:
        """Announce the next attempt, but only to viewers that received text of the one that was given up."""
        given_up = self._run.stream
        record = envelopes.attempt_superseded_record(given_up.attempt, next_attempt)
        self._run.stream = _TextStream(replace(given_up.attempt, number=next_attempt))
        if given_up.sent:
            self._send(record, at)

    # Sending.

    def _enter_step(self, step_number: int) -> None:
        """Start another run if the step number repeats after the end, or is lower than the last one."""
        last = self._run.stream.attempt.step_number
        if step_number < last or (step_number == last and self._run.is_over):
            self._begin_run()
        self._run.is_over = False
        if step_number != self._run.stream.attempt.step_number:
            self._run.stream = _TextStream(Attempt(step_number))

    def _begin_run(self) -> None:
        self._run = _Run(self._run.number + 1)

    def _update_status(
        self,
        status: WireStatus,
        at: datetime,
        error: str | None = None,
        last_response: str | None = None,
        output: FrozenDict | None = None,
    ) -> None:
        if self.config.auto_status_tracking and status is not self._status:
            self._send_status(status, at, error, last_response, output)

    def _send_status(
        self,
        status: WireStatus,
        at: datetime,
        error: str | None,
        last_response: str | None,
        output: FrozenDict | None = None,
    ) -> None:
        self._run.changes += 1
        record = envelopes.status_changed_record(
            status,
            self._status,
            change=self._run.changes,
            step_count=self._run.step_count,
            error_message=error,
            last_response=last_response,
            output=output,
            cost_usd=self._run.cost_usd if status.is_terminal else None,
        )
        self._status = status
        self._send(record, at)

    def _send(self, record: EventRecord, at: datetime) -> None:
        if self._run.number > 1:
            record = replace(record, key=f"run/{self._run.number}/{record.key}")
        self.broadcaster.broadcast(self.channel, Envelope.of(record, self.session_id, self.execution_id, at))


def _has_failure_to_come(event: ContinuationEvaluated) -> bool:
    """Whether a criterion raised after this step: a failure step then follows and ends the execution."""
    failure = event.outcome.failure
    return failure is not None and failure.message not in event.errors


def _error_text(event: ContinuationEvaluated) -> str | None:
    """The errors of the event, or the reason of the deciding criterion if there are none."""
    deciding = event.outcome.evaluation_for(event.resolved_by)
    return "\n".join(event.errors) or (deciding.reason if deciding else None)


def _wire_status(given: WireStatus | str) -> WireStatus:
    try:
        return WireStatus(given)
    except ValueError:
        raise UnknownName("wire status", str(given), WireStatus) from None
