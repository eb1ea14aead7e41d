"""Reads the envelopes of one execution and its subagents in order, and says what happened in it.

A *run* is what a front end sees between two answers of people. It begins with `RunStarted` and closes with
`RunPaused` if the execution waits for people, or with `RunEnded`. Steps and subagents that are open at a
pause are closed for the reader, and opened again in the next run.

Which events an envelope has depends on the log alone, so they can be counted. Only the events of text depend
on the chunks that were read.
"""

from collections.abc import Generator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import UUID

from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.loop.status import TERMINAL_WIRE_STATUSES, WireStatus
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.wires.event_bodies import (
    Bodies,
    CallBody,
    ExecutionBody,
    Need,
    StepBody,
)
from everstep.wires.event_needs import AFTER_REPLY, find_needs, is_budget_request
from everstep.wires.lanes import Lane, OpenText
from everstep.wires.run_events import (
    AttemptSuperseded,
    CallEnded,
    CallRequested,
    MessageReceived,
    Progressed,
    Reasoned,
    RequestOpened,
    RequestResolved,
    RequestView,
    RunEnded,
    RunEvent,
    RunPaused,
    RunStarted,
    StateChanged,
    StepEnded,
    StepStarted,
    SubagentEnded,
    SubagentStarted,
    TextAdded,
    TextDropped,
    TextEnded,
    TextStarted,
    Thread,
    ThreadMessage,
)
from everstep.wires.thread_messages import reply_messages, result_message, user_message

JsonMap: TypeAlias = Mapping[str, Any]
Events: TypeAlias = Generator[RunEvent]

TEXT_TYPES = (EnvelopeType.AGENT_STREAM_CHUNK, EnvelopeType.AGENT_STREAM_SNAPSHOT)
"""Envelopes of text, which are not stored."""


class RunFold:
    """What is known of an execution after a part of its log."""

    def __init__(self, execution_id: str) -> None:
        self.root = Lane(execution_id)
        self.lanes = {execution_id: self.root}
        """The execution and its subagents."""
        self.seq = 0
        """The last envelope that was read."""
        self.is_running = False
        """Whether a run is open."""
        self._foreign: set[str] = set()
        self._thread: list[ThreadMessage] = []
        self._requests: dict[str, RequestView] = {}
        """The requests that wait for people."""
        self._state: FrozenDict = EMPTY
        self._segment = 0
        self._missed = False
        """Whether the conversation went on while no run was open."""

    def needs(self, envelope: JsonMap, bodies: Bodies) -> Sequence[Need]:
        """What has to be loaded before `events`, beyond these bodies; call it until nothing is missing."""
        if envelope["type"] in TEXT_TYPES or envelope["execution_id"] in self._foreign:
            return ()
        return find_needs(envelope, self.root, self.lanes, bodies)

    # Events.

    def events(self, envelope: JsonMap, bodies: Bodies) -> Events:
        """Read a stored envelope; yield what happened."""
        self.seq = envelope["seq"]
        if self.root.has_ended:
            return
        if self.is_running:
            yield from self._apply(envelope, bodies)
        else:
            opening, before = [*self._reopen()], len(self._thread)
            events = [*self._apply(envelope, bodies)]
            if self._is_waiting or not self.root.name or envelope["execution_id"] in self._foreign:
                self._missed |= len(self._thread) > before
                return
            self.is_running = True
            has_news, self._missed = self._missed, False
            yield self._run_start(has_news=has_news)
            yield from opening
            yield from events
        if self.is_running and self._is_waiting:
            yield from self._pause(bodies)
        if self.root.has_ended:
            self.is_running = False

    @property
    def _is_waiting(self) -> bool:
        return self.root.status == WireStatus.PAUSED and bool(self._requests)

    @property
    def has_begun(self) -> bool:
        """Whether a run was open."""
        return self.is_running or self._segment > 0 or self.root.has_ended

    @property
    def open_budgets(self) -> Set[str]:
        """Those of them that wait until a budget is raised."""
        return {id_ for id_, request in self._requests.items() if request.is_budget}

    @property
    def open_requests(self) -> Set[str]:
        """The requests that wait for people."""
        return self._requests.keys()

    def forget_closed_texts(self) -> None:
        """Forget texts that are complete: what follows them implies it."""
        for lane in self.lanes.values():
            if lane.text and lane.text.is_closed:
                lane.text = None

    def open_again(self) -> Events:
        """The open run as it is now, for a reader that joins in the middle of it."""
        yield self._run_start(has_news=True)
        yield from self._reopen()

    def _run_start(self, *, has_news: bool) -> RunStarted:
        return RunStarted(
            **self._at(self.root),
            segment=self._segment,
            state=self._state,
            thread=self._snapshot(),
            has_news=has_news,
        )

    def _reopen(self) -> Events:
        """What was open when the last run closed."""
        for lane in self.lanes.values():
            if lane.has_ended:
                continue
            if lane.parent is not None:
                yield self._subagent_start(lane)
            if lane.is_step_open:
                yield StepStarted(**self._at(lane), number=lane.step, is_continued=True)

    def _pause(self, bodies: Bodies) -> Events:
        requests = tuple(self._requests.values())
        for lane in reversed(self.lanes.values()):
            if lane.has_ended:
                continue
            yield from self._drop(lane)
            if lane.is_step_open:
                yield StepEnded(**self._at(lane), number=lane.step, is_suspended=True)
            if lane.parent is not None:
                own = tuple(each.id for each in requests if each.execution_id == lane.execution_id)
                yield replace(self._subagent_end(lane, WireStatus.PAUSED), request_ids=own)
        self.is_running = False
        self._segment += 1
        body = bodies.outcomes.get(self.root.execution_id)
        yield RunPaused(
            **self._at(self.root),
            requests=requests,
            thread=self._snapshot(),
            state=self._state,
            because=body.because if body else None,
            usage=body.usage if body else EMPTY,
        )

    def _apply(self, envelope: JsonMap, bodies: Bodies) -> Events:
        lane = yield from self._lane_of(envelope, bodies)
        if lane is None or lane.has_ended:
            return
        kind, payload = envelope["type"], envelope["payload"]
        if kind in AFTER_REPLY:
            yield from self._reply(lane, bodies.steps.get((lane.execution_id, lane.step)))
        match kind:
            case "message.received" if lane is self.root:
                self._thread.append(user_message(payload))
            case "input.received" if "request_id" not in (payload.get("metadata") or {}):
                yield from self._receive(lane, payload)
            case EnvelopeType.AGENT_STATUS:
                yield from self._status(lane, payload, bodies)
            case EnvelopeType.AGENT_STEP_STARTED:
                lane.step, lane.is_step_open = payload["step_number"], True
                yield StepStarted(**self._at(lane), number=lane.step)
            case EnvelopeType.AGENT_STEP_COMPLETED:
                yield from self._complete_step(lane, payload, bodies)
            case EnvelopeType.AGENT_ATTEMPT_SUPERSEDED:
                yield from self._supersede(lane, payload["step_number"], payload["next_attempt"])
            case EnvelopeType.AGENT_TOOL_COMPLETED:
                yield from self._end_call(lane, payload, bodies)
            case _:
                yield from self._apply_request(lane, envelope)

    def _apply_request(self, lane: Lane, envelope: JsonMap) -> Events:
        payload = envelope["payload"]
        match envelope["type"]:
            case EnvelopeType.AGENT_APPROVAL_REQUESTED | EnvelopeType.AGENT_INPUT_REQUESTED:
                request = lane.request(payload)
                lane.asked.add(payload["tool_call_id"])
                self._requests[request.id] = request
                yield RequestOpened(**self._at(lane), request=request)
            case _ if is_budget_request(envelope):
                request = lane.budget_request(payload)
                self._requests[request.id] = request
                yield RequestOpened(**self._at(lane), request=request)
            case EnvelopeType.AGENT_APPROVAL_RESOLVED | EnvelopeType.AGENT_INPUT_RECEIVED:
                if request := self._requests.pop(payload["request_id"], None):
                    decision = payload.get("decision") or _answered_by(payload)
                    yield RequestResolved(
                        **self._at(lane), request=request, decision=decision, reason=payload.get("reason")
                    )
            case _:
                return

    def _at(self, lane: Lane) -> dict[str, Any]:
        return {"execution_id": lane.execution_id, "seq": self.seq}

    # Executions.

    def _lane_of(self, envelope: JsonMap, bodies: Bodies) -> Generator[RunEvent, None, Lane | None]:
        execution_id = envelope["execution_id"]
        if execution_id in self._foreign:
            return None
        lane = self.lanes.get(execution_id)
        if lane is not None:
            if not lane.name:
                body = bodies.executions.get(execution_id)
                lane.name = body.agent if body else "agent"
                self._state = frozen_map(body.state if body else EMPTY)
            return lane
        body = bodies.executions.get(execution_id)
        parent = self.lanes.get(body.parent_id or "") if body else None
        if body is None or parent is None:
            self._foreign.add(execution_id)
            return None
        yield from self._reply(parent, bodies.steps.get((parent.execution_id, parent.step)))
        lane = self.lanes[execution_id] = Lane(execution_id, parent, body.agent)
        ids = {str(subagent_id(UUID(parent.execution_id), call)): call for call in parent.calls}
        lane.call_id = ids.get(execution_id)
        yield self._subagent_start(lane)
        return lane

    def _subagent_start(self, lane: Lane) -> SubagentStarted:
        parent = lane.parent or self.root
        call, message = parent.calls.get(lane.call_id or "", (None, None))
        return SubagentStarted(
            **self._at(lane),
            name=lane.name,
            parent_id=parent.execution_id,
            is_nested=parent.parent is not None,
            call_id=call and call.id,
            message_id=message,
        )

    def _status(self, lane: Lane, payload: JsonMap, bodies: Bodies) -> Events:
        if (detail := payload.get("detail")) is not None:
            call, _ = lane.calls.get(payload.get("tool_call_id") or "", (None, ""))
            yield Progressed(
                **self._at(lane),
                detail=detail,
                call_id=call and call.id,
                fraction=payload.get("fraction"),
            )
            return
        lane.status = payload["status"]
        if lane.status != WireStatus.PAUSED:
            yield from self._resolve_budgets(lane)
        if lane.status in TERMINAL_WIRE_STATUSES:
            yield from self._end(lane, payload, bodies)
        elif lane.status == WireStatus.PAUSED and lane is self.root and not self._requests:
            body = bodies.outcomes.get(lane.execution_id)
            yield Progressed(**self._at(lane), detail=(body.because if body else None) or "paused")

    def _resolve_budgets(self, lane: Lane) -> Events:
        """An execution that goes on waits for no budget any more."""
        for request in [*self._requests.values()]:
            if request.is_budget and request.execution_id == lane.execution_id:
                del self._requests[request.id]
                yield RequestResolved(**self._at(lane), request=request, decision="raise")

    def _end(self, lane: Lane, payload: JsonMap, bodies: Bodies) -> Events:
        if lane is self.root:
            for child in reversed(self.lanes.values()):
                if child is not lane and not child.has_ended:
                    yield from self._close(child)
                    yield self._subagent_end(child, WireStatus.CANCELLED)
        yield from self._close(lane)
        status, error = payload["status"], payload.get("error_message")
        if lane is not self.root:
            yield self._subagent_end(lane, status, error)
            return
        body = bodies.outcomes.get(lane.execution_id) or ExecutionBody(lane.name)
        yield RunEnded(
            **self._at(lane),
            status=status,
            response=payload.get("last_response"),
            error=error,
            output=payload.get("output"),
            stop_reason=body.stop_reason,
            because=body.because,
            usage=body.usage,
            cost_usd=payload.get("cost_usd"),
            state=self._state,
        )

    def _subagent_end(self, lane: Lane, status: str, error: str | None = None) -> SubagentEnded:
        return SubagentEnded(**self._at(lane), name=lane.name, status=status, text=lane.said, error=error)

    def _close(self, lane: Lane) -> Events:
        lane.has_ended = True
        self._requests = {
            id_: each for id_, each in self._requests.items() if each.execution_id != lane.execution_id
        }
        if lane.open_text:
            yield self._end_text(lane, lane.open_text)
        if lane.is_step_open:
            lane.is_step_open = False
            yield StepEnded(**self._at(lane), number=lane.step)

    # Steps.

    def _complete_step(self, lane: Lane, payload: JsonMap, bodies: Bodies) -> Events:
        number = payload["step_number"]
        body = bodies.steps.get((lane.execution_id, number))
        if number == lane.step:
            yield from self._reply(lane, body)
        if lane.is_step_open and number == lane.step:
            lane.is_step_open = False
            yield StepEnded(
                **self._at(lane),
                number=number,
                finish_reason=payload["finish_reason"],
                because=body.because if body else None,
            )

    def _reply(self, lane: Lane, body: StepBody | None) -> Events:
        """The reply of the current step, once."""
        if body is None or lane.replied >= lane.step:
            return
        lane.replied = lane.step
        lane.fence(lane.step + 1, 0)
        yield from self._whole_text(lane, body)
        messages = reply_messages(lane.execution_id, body, lane.subagent_id)
        self._thread += messages
        lane.said = body.text or lane.said
        id_ = lane.message_id()
        views = [view for message in messages for view in message.calls]
        lane.calls |= {each.id: (view, id_) for each, view in zip(body.calls, views, strict=True)}
        for message in messages:
            if message.role == "reasoning":
                yield Reasoned(**self._at(lane), message_id=message.id, text=message.text)
        for call, view in zip(body.calls, views, strict=True):
            yield CallRequested(**self._at(lane), message_id=id_, call=view, is_question=call.is_question)

    def _end_call(self, lane: Lane, payload: JsonMap, bodies: Bodies) -> Events:
        call_id = payload["tool_call_id"]
        view, said_in = lane.calls.get(call_id, (None, ""))
        if view is None:
            return
        step = bodies.steps.get((lane.execution_id, lane.step))
        body = (step and step.call(call_id)) or CallBody(call_id, view.name, view.args)
        message = result_message(lane.execution_id, said_in, body, lane.subagent_id)
        self._thread.append(message)
        yield CallEnded(
            **self._at(lane),
            message_id=message.id,
            call=view,
            text=body.text,
            result=body.result,
            error=body.error,
            is_denied=body.is_denied,
            has_request=call_id in lane.asked,
            files=body.files,
        )
        if lane is self.root and body.changes:
            removed = tuple(key for key in body.changes.removed if key in self._state)
            self._state = body.changes.apply_to(self._state)
            changes = type(body.changes)(body.changes.values, removed)
            yield StateChanged(**self._at(lane), changes=changes, state=self._state)

    # Texts.

    def text_events(self, envelope: JsonMap, *, is_silent: bool = False) -> Events:
        """Read a chunk or a snapshot of a text; a silent reader receives the text later."""
        lane = self.lanes.get(envelope["execution_id"])
        if lane is None or lane.has_ended:
            return
        whole = lane.take_text(envelope)
        if whole is None or is_silent or not self.is_running or (lane.text and lane.text.is_closed):
            return
        step_number, attempt = envelope["payload"]["step_number"], envelope["payload"]["attempt"]
        if lane.open_text and not lane.open_text.goes_on(step_number, attempt, whole):
            yield from self._drop(lane)
        if lane.open_text is None:
            yield self._start_text(lane, step_number, attempt)
        yield from self._add_text(lane, whole)

    def _start_text(self, lane: Lane, step_number: int, attempt: int) -> TextStarted:
        lane.text = OpenText(step_number, attempt)
        return TextStarted(**self._at(lane), message_id=lane.message_id(step_number), attempt=attempt)

    def _add_text(self, lane: Lane, whole: str) -> Events:
        text = lane.open_text
        if text and (added := text.rest(whole)):
            yield TextAdded(**self._at(lane), message_id=lane.message_id(text.step_number), text=added)

    def _end_text(self, lane: Lane, text: OpenText) -> TextEnded:
        text.is_closed = True
        return TextEnded(**self._at(lane), message_id=lane.message_id(text.step_number))

    def _whole_text(self, lane: Lane, body: StepBody) -> Events:
        """The whole text of the current step, of which the reader may have a part, or all."""
        if lane.text and lane.text.is_closed:
            return
        text = lane.open_text
        if text and not body.text:
            yield from self._drop(lane, for_good=True)
        elif text and not text.begins(body.text):
            yield from self._drop(lane)
        if body.text and lane.open_text is None:
            yield self._start_text(lane, lane.step, body.attempt)
        yield from self._add_text(lane, body.text)
        if lane.open_text:
            yield self._end_text(lane, lane.open_text)

    def _supersede(self, lane: Lane, step_number: int, next_attempt: int) -> Events:
        lane.fence(step_number, next_attempt)
        if lane.open_text and lane.open_text.attempt < next_attempt:
            yield from self._drop(lane)
        yield AttemptSuperseded(**self._at(lane), number=step_number, next_attempt=next_attempt)

    def _drop(self, *lanes: Lane, for_good: bool = False) -> Events:
        """Void the open texts of these executions, and those of which only the length is known.

        A restated conversation has the texts that go on, so their content has to be known. A text that is
        void for good is not begun again by a chunk that comes late.
        """
        for lane in self.lanes.values():
            text = lane.open_text
            if text and (lane in lanes or text.content is None):
                text.is_closed = for_good and lane in lanes
                lane.text = text if text.is_closed else None
                message = lane.message_id(text.step_number)
                yield TextDropped(**self._at(lane), message_id=message, thread=self._snapshot())

    def _receive(self, lane: Lane, payload: JsonMap) -> Events:
        yield from self._drop()
        message = user_message(payload)
        self._thread.append(message)
        yield MessageReceived(**self._at(lane), message=message, thread=self._snapshot())

    def _snapshot(self) -> Thread:
        """The conversation of the run, with the texts that a reader receives now."""
        texts = [
            ThreadMessage(
                lane.message_id(text.step_number), "assistant", text.content, subagent_id=lane.subagent_id
            )
            for lane in self.lanes.values()
            if (text := lane.open_text) and text.content is not None
        ]
        return (*self._thread, *texts)


def _answered_by(payload: JsonMap) -> str:
    return "default" if payload.get("source") == "default" else "answer"
