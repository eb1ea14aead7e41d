"""Checks of every operation at the end, by the journal of the agents and the rows of the store.

The journal is written by tools and models, outside the product. The rows are read once, when nothing runs any
more. Each function yields one sentence for each violation.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.stream.reader import AFTER_ALL_ATTEMPTS, fence_from
from tests.acceptance.agents import JOURNAL
from tests.acceptance.harness import Entry, read_journal
from tests.acceptance.onlookers import SseViewer, StreamViewer
from tests.acceptance.storm.operations import Operation
from tests.acceptance.storm.programs import AT_MOST_ONCE
from tests.acceptance.storm.scene import Scene

TALKING = frozenset({"begin", "enqueue", "interrupt", "reject", "steer"})
"""Operations whose words reach a model, or reach none if they are refused."""


@dataclass
class Records:
    """All counts."""

    journal: list[Entry]
    executions: dict[str, dict[str, Any]]
    messages: list[dict[str, Any]]
    transcript: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    requests: list[dict[str, Any]]

    @classmethod
    async def read(cls, scene: Scene) -> "Records":
        """Read the rows and the journal."""
        executions = await scene.rows("SELECT *, input::text AS words FROM agent_executions")
        return cls(
            read_journal(scene.folder / JOURNAL),
            {str(row["id"]): row for row in executions},
            await scene.rows("SELECT * FROM agent_session_messages"),
            await scene.rows(
                "SELECT execution_id, step, idx, role, content #>> '{}' AS text FROM agent_transcript"
                " WHERE role IN ('user', 'assistant', 'tool')"
            ),
            await scene.rows("SELECT * FROM agent_tool_calls"),
            await scene.rows("SELECT * FROM agent_requests"),
        )

    def count_in_transcripts(self, words: str) -> int:
        """Count the user messages of all transcripts with these words."""
        return len(self._receivers[words])

    def statuses_of_receivers(self, words: str) -> set[str]:
        """The final statuses of the executions whose transcripts have a user message with these words."""
        return {self.status(execution_id) for execution_id in self._receivers[words]}

    def count_in_messages(self, words: str) -> int:
        """Count the messages from people with these words, in all sessions."""
        return self._messages[words]

    def count_in_requests(self, words: str) -> int:
        """Count the model calls with these words in the conversation."""
        return self._requests[words]

    @cached_property
    def _receivers(self) -> defaultdict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for row in self.transcript:
            if row["role"] == "user":
                found[row["text"]].append(str(row["execution_id"]))
        return found

    @cached_property
    def _messages(self) -> Counter[str]:
        return Counter(row["content"] for row in self.messages if row["role"] == "user")

    @cached_property
    def _requests(self) -> Counter[str]:
        asked = (entry for entry in self.journal if entry.event == "asked")
        return Counter(words for entry in asked for words in entry.data["users"])

    def status(self, execution_id: str) -> str:
        """The final status of an execution."""
        return str(self.executions[execution_id]["status"]) if execution_id in self.executions else "missing"


async def wrong_books(scene: Scene) -> list[str]:
    """All violations, one sentence each."""
    books = await Records.read(scene)
    found = [*wrong_operations(scene.operations, books), *wrong_decisions(scene.operations, books)]
    found += [*wrong_calls(books), *wrong_executions(books)]
    for onlooker in scene.viewers:
        found += [f"viewer {onlooker.name}: {each}" for each in await wrong_view(scene, onlooker)]
    return found


def wrong_operations(operations: list[Operation], books: Records) -> Iterator[str]:
    """An accepted operation is done once; a refused one has no effect."""
    for operation in operations:
        if not operation.status:
            continue
        if operation.kind in TALKING and operation.is_accepted:
            yield from _wrong_words(operation, books)
        elif operation.kind in TALKING:
            words = operation.body["content"]
            traces = (
                books.count_in_transcripts(words)
                + books.count_in_messages(words)
                + books.count_in_requests(words)
            )
            if traces:
                yield f"refused, and {traces} traces of it are left: {operation}"
        elif operation.kind in {"fork", "execution"} and operation.is_accepted:
            if operation.answer["id"] not in books.executions:
                yield f"accepted, and there is no such execution: {operation}"
        elif operation.kind == "cancel" and operation.is_accepted:
            status = books.status(operation.answer["id"])
            if status != "cancelled" and operation.answer["status"] not in {"completed", "failed"}:
                yield f"cancelled, and it is {status} in the end: {operation}"
    yield from _duplicates(operations, books)


def _wrong_words(operation: Operation, books: Records) -> Iterator[str]:
    words, answer = operation.body["content"], operation.answer
    route = answer.get("route", "steer")
    execution = answer.get("execution_id") or answer["id"]
    if "route" in answer and books.count_in_messages(words) != 1:
        yield f"the message stands {books.count_in_messages(words)} times in its session: {operation}"
    if route == "answer":
        resolutions = [row["resolution"] for row in books.requests if row["resolution"]]
        answers = sum(operation.token in json.dumps(each) for each in resolutions)
        if answers != 1:
            yield f"the answer resolved {answers} requests: {operation}"
        return
    if operation.kind == "interrupt" and route == "queue":
        yield f"it was to interrupt, and waits: {operation}"
    status, count = books.status(execution), books.count_in_transcripts(words)
    # A cancelled execution may not have received it: it has no next step.
    lost = status == "cancelled" and count == 0
    if count != 1 and not lost:
        yield f"the words stand {count} times in transcripts, the execution is {status}: {operation}"
    # The message may have begun another execution, and an interrupt may have cancelled that one.
    if books.statuses_of_receivers(words) == {"completed"} and not books.count_in_requests(words):
        yield f"no model received the words: {operation}"


def _duplicates(operations: list[Operation], books: Records) -> Iterator[str]:
    """One program has one execution; forks run the program of another execution again."""
    wanted = {each.token for each in operations if each.kind in {"begin", "execution"} and each.is_accepted}
    began = Counter[str]()
    for row in books.transcript:
        if row["role"] == "user" and row["step"] == 0 and row["text"].startswith('{"program"'):
            began[json.loads(row["text"])["program"]] += 1
    for token in sorted(wanted):
        if began[token] > 1:
            yield f"the program {token} began {began[token]} times"


def wrong_decisions(operations: list[Operation], books: Records) -> Iterator[str]:
    """Each request has one decision, and the decision is carried out.

    A fork runs the calls of its origin again, with the same marks and decisions of its own.
    """
    ran = Counter[tuple[str, str]](
        (entry.data["execution"], entry.data["mark"]) for entry in books.journal if entry.event == "ran"
    )
    requests = {str(row["id"]): row for row in books.requests}
    decided = defaultdict[str, list[Operation]](list)
    for operation in operations:
        if operation.kind in {"approve", "deny", "edit"} and operation.is_accepted:
            decided[operation.path.rpartition("/")[2]].append(operation)
        elif operation.kind == "edit" and any(mark == operation.body["args"]["mark"] for _, mark in ran):
            yield f"a refused edit ran: {operation}"
        elif operation.kind == "input" and operation.is_accepted:
            resolution = json.dumps(requests[operation.body["request_id"]]["resolution"])
            if operation.token not in resolution:
                yield f"accepted, and another answer is stored: {operation}"
    for request_id, accepted in decided.items():
        yield from _wrong_decision(accepted, requests[request_id], books, ran)


def _wrong_decision(
    accepted: list[Operation], request: dict[str, Any], books: Records, ran: Counter[tuple[str, str]]
) -> Iterator[str]:
    if len({(each.kind, json.dumps(each.body.get("args"))) for each in accepted}) > 1:
        yield f"two decisions were accepted for one request: {', '.join(map(str, accepted))}"
        return
    first, key = accepted[0], (request["execution_id"], request["call_id"])
    call = next(row for row in books.calls if (row["execution_id"], row["call_id"]) == key)
    mark = first.body["args"]["mark"] if first.kind == "edit" else call["args"]["mark"]
    runs = ran[str(request["execution_id"]), mark]
    if first.kind == "deny" and runs:
        yield f"a denied call ran: {first}"
    elif first.kind != "deny" and call["success"] and not runs:
        yield f"an approved call did not run: {first}"


def wrong_calls(books: Records) -> Iterator[str]:
    """Each call has one result, and at most once means at most once."""
    ran = Counter(
        (entry.data["execution"], entry.data["key"]) for entry in books.journal if entry.event == "ran"
    )
    for call in books.calls:
        key = str(call["execution_id"]), call["call_id"]
        if call["name"] in AT_MOST_ONCE and ran[key] > 1:
            yield f"{call['name']} ran {ran[key]} times: {key}"
        if call["success"] and call["name"] not in {"user_input", "delegate"} and not ran[key]:
            denied = str(call["text"] or "").startswith("Denied by user")
            if not denied:
                yield f"{call['name']} succeeded and never ran: {key}"
        if ran[key] > max(1, call["attempts"]):
            yield f"{call['name']} ran {ran[key]} times in {call['attempts']} attempts: {key}"
    results = Counter((str(row["execution_id"]), row["step"], row["idx"]) for row in books.transcript)
    yield from (f"a line stands {number} times: {line}" for line, number in results.items() if number > 1)


def wrong_executions(books: Records) -> Iterator[str]:
    """Every execution ended, and none failed: the programs give no reason to."""
    for row in books.executions.values():
        if row["status"] not in {"completed", "cancelled"}:
            yield f"execution {row['id']} is {row['status']}: {row['error_message']}"


async def wrong_view(scene: Scene, onlooker: StreamViewer) -> list[str]:
    """A viewer saw what is stored, in order, each envelope once."""
    stored, seen = await scene.read_stream(onlooker.stream_id), onlooker.received
    found = list(seen.faults)
    found += [
        f"{mine} instead of {theirs}"
        for mine, theirs in zip(seen.stored, stored, strict=False)
        if mine.to_dict() != theirs.to_dict()
    ]
    if len(seen.stored) != len(stored):
        found.append(f"{len(seen.stored)} of {len(stored)} envelopes")
    if [each.seq for each in stored] != list(range(1, len(stored) + 1)):
        found.append("the stored numbers have a gap")
    found += _wrong_ends(stored)
    if isinstance(onlooker, SseViewer) and onlooker.last.rpartition(":")[2] != str(len(seen.stored)):
        found.append(f"the last event was {onlooker.last}")
    return found


def _wrong_ends(stored: list[Any]) -> Iterator[str]:
    """The terminal status is the last envelope of its execution, once."""
    own = defaultdict[UUID, list[Any]](list)
    for envelope in stored:
        own[envelope.execution_id].append(envelope)
    for execution_id, envelopes in own.items():
        ends = [
            each.type == EnvelopeType.AGENT_STATUS
            and fence_from(each.type, each.payload) == AFTER_ALL_ATTEMPTS
            for each in envelopes
        ]
        if ends.count(True) != 1 or not ends[-1]:
            yield f"{execution_id} has {ends.count(True)} terminal statuses, its last is {envelopes[-1].type}"
