"""Random runs: what an execution stores and sends, in the order of time, with the bodies of its steps.

A run has attempts that are given up, text that differs from what was stored in the end, calls of every kind,
questions, approvals, subagents, steering messages, and any end.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.stream.envelope_types import EnvelopeType
from everstep.agent_domain.values import frozen_map
from everstep.wires.event_bodies import (
    Bodies,
    CallBody,
    ExecutionBody,
    Need,
    NeedsExecution,
    NeedsOutcome,
    NeedsStep,
    StepBody,
)

SESSION = UUID("5c0ff1ce-0000-4000-8000-000000000000")
NAMESPACE = UUID("5c0ff1ce-0000-4000-8000-000000000001")
AT = "2026-01-16T10:05:00.123Z"

WORDS = ("red", "blüe", "green\n", " ", "{", "日本", "🙂", "and so on ", "[1]", "yes.")

Envelope = dict[str, Any]
JsonMap = Mapping[str, Any]


@dataclass
class RandomLog:
    """A log in the making."""

    seed: int
    timeline: list[Envelope] = field(default_factory=list[Envelope])
    """Stored envelopes and chunks, as they happened."""
    steps: dict[tuple[str, int], StepBody] = field(default_factory=dict[tuple[str, int], StepBody])
    executions: dict[str, ExecutionBody] = field(default_factory=dict[str, ExecutionBody])
    open_texts: list[dict[str, Envelope]] = field(default_factory=list[dict[str, Envelope]])
    """For each moment of the timeline, the snapshots that a reader receives who joins right after it."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)  # noqa: S311 -- no secret
        self.root = str(uuid5(NAMESPACE, f"run/{self.seed}"))
        self._seq = 0
        self._texts: dict[str, Envelope] = {}
        self._is_over = False
        self._ends_early = self.dice.random() < 0.3
        self._run(self.root, None, depth=0)

    @property
    def stored(self) -> list[Envelope]:
        """The stored envelopes."""
        return [envelope for envelope in self.timeline if envelope["seq"] is not None]

    def load(self, needs: Sequence[Need], bodies: Bodies) -> Bodies:
        """The bodies that a reader loads."""
        executions, outcomes, steps = {**bodies.executions}, {**bodies.outcomes}, {**bodies.steps}
        for need in needs:
            match need:
                case NeedsExecution(id_):
                    executions[id_] = self.executions.get(id_)
                case NeedsOutcome(id_):
                    outcomes[id_] = ExecutionBody("clerk", because="because of the dice")
                case NeedsStep(id_, number):
                    steps[id_, number] = self.steps.get((id_, number))
        return Bodies(executions, outcomes, steps)

    # Writing.

    def _add(
        self, kind: str, execution_id: str, payload: Mapping[str, Any], *, is_stored: bool = True
    ) -> None:
        if self._is_over:
            return
        self._seq += is_stored
        envelope = {
            "type": str(kind),
            "session_id": str(SESSION),
            "execution_id": execution_id,
            "timestamp": AT,
            "payload": dict(payload),
            "id": str(uuid5(NAMESPACE, f"{self.seed}/{len(self.timeline)}")),
            "seq": self._seq if is_stored else None,
        }
        self.timeline.append(envelope)
        if kind == EnvelopeType.AGENT_STREAM_CHUNK:
            before = self._texts.get(execution_id)
            is_same = before is not None and before["payload"]["attempt"] == payload["attempt"]
            content = before["payload"]["content"] if before and is_same and payload["chunk_index"] else ""
            snapshot = {
                "content": content + payload["content"],
                "next_index": payload["chunk_index"] + 1,
                "step_number": payload["step_number"],
                "attempt": payload["attempt"],
                "after_seq": self._seq,
            }
            self._texts[execution_id] = envelope | {
                "type": str(EnvelopeType.AGENT_STREAM_SNAPSHOT),
                "payload": snapshot,
            }
        self.open_texts.append(dict(self._texts))

    def _maybe(self, chance: float) -> bool:
        return self.dice.random() < chance

    def _words(self, most: int) -> list[str]:
        return [self.dice.choice(WORDS) for _ in range(self.dice.randint(0, most))]

    def _status(self, execution_id: str, status: str, **more: Any) -> None:
        payload = {"status": status, "previous_status": "processing", "step_count": 1, "error_message": None}
        self._add("agent.status", execution_id, payload | {"last_response": None} | more)

    # Running.

    def _run(self, execution_id: str, parent: str | None, depth: int) -> None:
        self.executions[execution_id] = ExecutionBody("clerk" if parent is None else "aide", parent)
        if parent is None:
            self._other_execution()
            message: JsonMap = {
                "message_id": "m",
                "content": "Go",
                "metadata": {},
                "event_type": "message.received",
            }
            self._add("message.received", execution_id, message)
        self._add("execution.queued", execution_id, {"content": "Execution queued"})
        if parent is None and self._maybe(0.2):
            self._other_execution()
        self._status(execution_id, "processing")
        for number in range(1, self.dice.randint(1, 3) + 1):
            if not self._step(execution_id, number, depth):
                break
            if depth == 0 and self._maybe(0.15):
                steering: JsonMap = {"message_id": f"s{number}", "content": "Hurry", "metadata": {}}
                self._add("input.received", execution_id, steering)
        self._end(execution_id)

    def _other_execution(self) -> None:
        """Another execution of the session, which is none of the reader's business."""
        other = str(uuid5(NAMESPACE, f"other/{self.seed}/{self._seq}"))
        self.executions[other] = ExecutionBody("clerk")
        self._add("execution.queued", other, {"content": "Execution queued"})

    def _end(self, execution_id: str) -> None:
        status = self.dice.choice(["completed", "completed", "stopped", "failed", "cancelled"])
        error = "it broke" if status == "failed" else None
        self._add(f"execution.{status}", execution_id, {"content": "over", "metadata": {}})
        self._status(execution_id, status, error_message=error)
        self._texts.pop(execution_id, None)
        if execution_id == self.root:
            self._is_over = True

    def _step(self, execution_id: str, number: int, depth: int) -> bool:
        """One step; whether another one may follow."""
        at = {"step_number": number}
        self._add("agent.step.started", execution_id, at | {"message_count": 1, "available_tools": []})
        text, attempt = self._attempts(execution_id, number)
        if self._ends_early and depth == 0 and self._maybe(0.3):
            # Cancelled while the model writes.
            return False
        calls = [self._call(number, index, depth) for index in range(self.dice.choice([0, 0, 1, 2, 3]))]
        reasoning = "hm" if self._maybe(0.3) else ""
        bodies = tuple(body for _, body in calls)
        self.steps[execution_id, number] = StepBody(number, attempt, text, reasoning, bodies, "because")
        self._requests(execution_id, number, calls)
        for kind, body in calls:
            self._run_call(execution_id, number, kind, body, depth)
        self._texts.pop(execution_id, None)
        completed = {"has_tool_calls": bool(calls), "errors": 0, "finish_reason": "stop"}
        self._add("agent.step.completed", execution_id, at | completed)
        return True

    def _attempts(self, execution_id: str, number: int) -> tuple[str, int]:
        """The attempts of a model call: what was stored in the end, and by which attempt."""
        attempt = 1
        while True:
            words = self._words(6)
            for index, word in enumerate(words):
                chunk = {"content": word, "is_complete": False, "chunk_index": index, "attempt": attempt}
                more = {"step_number": number, "after_seq": self._seq}
                self._add(EnvelopeType.AGENT_STREAM_CHUNK, execution_id, chunk | more, is_stored=False)
            if not self._maybe(0.25):
                break
            superseded = {"step_number": number, "attempt": attempt, "next_attempt": attempt + 1}
            self._texts.pop(execution_id, None)
            self._add("agent.attempt.superseded", execution_id, superseded)
            attempt += 1
        text = "".join(words)
        if self._maybe(0.1):
            text = self.dice.choice(["", "another text", text.rstrip(), text + " and more"])
        return text, attempt

    def _call(self, number: int, index: int, depth: int) -> tuple[str, CallBody]:
        kinds = ["quick", "slow", "approval", "denied", "question"] + (["subagent"] if depth < 2 else [])
        kind = self.dice.choice(kinds)
        is_failed = self._maybe(0.2)
        changes = NO_METADATA_CHANGES
        if self._maybe(0.3):
            changes = MetadataChanges(frozen_map({"a/b~": number, f"k{index}": index}), ("k0",))
        name = {"question": "user_input", "subagent": "spawn_subagent"}.get(kind, "look")
        return kind, CallBody(
            f"c{number}.{index}",
            name,
            {"n": index},
            text="Error: no" if is_failed else f"result {index}",
            error="no" if is_failed else None,
            is_done=True,
            is_denied=kind == "denied",
            is_question=kind == "question",
            changes=changes,
        )

    def _requests(self, execution_id: str, number: int, calls: list[tuple[str, CallBody]]) -> None:
        """People are asked for everything that needs them, and answer in any order."""
        waiting = [(kind, body) for kind, body in calls if kind in {"approval", "denied", "question"}]
        if not waiting:
            return
        ids = {body.id: str(uuid5(UUID(execution_id), f"request/{number}/{body.id}")) for _, body in waiting}
        for kind, body in waiting:
            of = {"request_id": ids[body.id], "tool_call_id": body.id, "step_number": number}
            if kind == "question":
                more: dict[str, Any] = {"prompt": "Which?", "choices": ["a", "b"], "schema": None}
                self._add("agent.input.requested", execution_id, of | more | {"expires_at": None})
            else:
                more = {"tool_name": body.name, "args": dict(body.args), "args_digest": "0" * 64}
                self._add("agent.approval.requested", execution_id, of | more)
        self._status(execution_id, "paused")
        if execution_id != self.root:
            self._status(self.root, "paused")
        if self._ends_early and self._maybe(0.2):
            self._end(self.root)
            return
        self.dice.shuffle(waiting)
        for kind, body in waiting:
            of = {"request_id": ids[body.id], "tool_call_id": body.id}
            if kind == "question":
                received = of | {"step_number": number, "source": "user", "message_id": None}
                self._add("agent.input.received", execution_id, received)
            else:
                decision = {"decision": "deny" if kind == "denied" else "approve", "reason": None}
                self._add("agent.approval.resolved", execution_id, of | decision)
        self._add("execution.resumed", execution_id, {"content": "Execution resumed"})
        if execution_id != self.root:
            self._status(self.root, "processing")
        self._status(execution_id, "processing")

    def _run_call(self, execution_id: str, number: int, kind: str, body: CallBody, depth: int) -> None:
        of = {"tool_name": body.name, "tool_call_id": body.id}
        if kind != "denied":
            self._add("agent.tool.started", execution_id, of | {"args_summary": ""})
        if kind == "slow" and self._maybe(0.5):
            progress = {"detail": "half", "fraction": 0.5, "tool_call_id": body.id}
            self._status(execution_id, "processing", **progress)
        if kind == "subagent":
            self._run(str(subagent_id(UUID(execution_id), body.id)), execution_id, depth + 1)
        done = {"success": body.error is None, "error": body.error, "duration_ms": 1.0}
        self._add("agent.tool.completed", execution_id, of | done | {"result_summary": body.text})
