"""Random runs as responses: every event once and with the same number, however often a reader is cut."""

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI

from everstep.wires.event_bodies import NO_BODIES
from everstep.wires.response_events import BLOCK, ResponseEvents, ResponseHead
from everstep.wires.response_items import text_pieces
from everstep.wires.run_log import RunLog
from tests.wires.clients import openai_viewer
from tests.wires.random_logs import RandomLog
from tests.wires.readers import delivered

LOGS = int(os.environ.get("EVERSTEP_RANDOM_RUNS", "12"))
CUTS = 4

WireEvent = Mapping[str, Any]


def events_of(
    log: RandomLog, segment: int, joined: int, dice: random.Random, after: int = -1
) -> Sequence[tuple[WireEvent, int]]:
    """What a reader of a run receives that joins at a moment, and when."""
    run, events = RunLog(log.root), ResponseEvents(ResponseHead(log.root, segment, "clerk", 0), after)
    received: list[tuple[WireEvent, int]] = []
    for moment, envelope in delivered(log, joined, dice):
        bodies = NO_BODIES
        while needs := run.needs(envelope, bodies):
            bodies = log.load(needs, bodies)
        for taken in run.take(envelope, bodies):
            received += [(event, moment) for event in events.encode(taken.event)]
        if events.is_complete:
            break
    return received


def segments_of(log: RandomLog) -> int:
    """How many runs the execution has."""
    segment = 0
    while events_of(log, segment + 1, 0, random.Random(0)):  # noqa: S311 -- no secret
        segment += 1
    return segment + 1


def with_cuts(log: RandomLog, segment: int, dice: random.Random) -> Sequence[WireEvent]:
    received: list[WireEvent] = []
    after, joined = -1, 0
    for _ in range(CUTS):
        rest = events_of(log, segment, joined, dice, after)
        for event, moment in rest[: dice.randint(0, 12)]:
            received.append(event)
            after, joined = event["sequence_number"], max(joined, moment)
        joined = dice.randint(joined, len(log.timeline))
    return [*received, *(event for event, _ in events_of(log, segment, joined, dice, after))]


def numbers(events: Sequence[WireEvent]) -> list[int]:
    return [event["sequence_number"] for event in events]


def without_text(events: Sequence[WireEvent]) -> list[WireEvent]:
    """The events that do not depend on how the text of a model arrived."""
    return [event for event in events if event["sequence_number"] % (3 * BLOCK) >= 2 * BLOCK]


def stored_texts(log: RandomLog) -> set[str]:
    return {body.text.rstrip() for (execution, _), body in log.steps.items() if execution == log.root}


def is_cut(log: RandomLog) -> bool:
    """Whether the execution ended while its model wrote: that text is not stored."""
    steps = {
        envelope["payload"]["step_number"]
        for envelope in log.stored
        if (envelope["type"], envelope["execution_id"]) == ("agent.step.started", log.root)
    }
    return any((log.root, step) not in log.steps for step in steps)


def read_texts(events: Sequence[WireEvent]) -> dict[str, tuple[str, str | None]]:
    """The pieces and the end of each text, by item."""
    pieces, ends = dict[str, str](), dict[str, str]()
    for event in events:
        if event["type"] == "response.output_text.delta":
            pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
        if event["type"] == "response.output_text.done":
            ends[event["item_id"]] = event["text"]
    return {item: (pieces.get(item, ""), ends.get(item)) for item in {*pieces, *ends}}


def test_a_reader_of_random_runs_that_is_cut_receives_every_event_once() -> None:
    """17.5.4"""
    runs = voided = 0
    for seed in range(LOGS):
        log = RandomLog(seed)
        for segment in range(segments_of(log)):
            dice = random.Random(f"{seed}/{segment}")  # noqa: S311 -- no secret
            whole = [event for event, _ in events_of(log, segment, 0, random.Random(0))]  # noqa: S311
            late = [event for event, _ in events_of(log, segment, len(log.timeline), dice)]
            resumed = with_cuts(log, segment, dice)
            where = seed, segment
            assert numbers(resumed) == sorted({*numbers(resumed)}), where
            for other in (whole, late):
                assert [(e["type"], e["sequence_number"]) for e in without_text(resumed)] == [
                    (e["type"], e["sequence_number"]) for e in without_text(other)
                ], where
            # A text that was stored as it was sent has the same pieces for everybody.
            changed = {item for item, (sent, end) in read_texts(whole).items() if end is None or sent != end}
            kinds = {e["sequence_number"]: e["type"] for e in whole if e.get("item_id") not in changed}
            assert (
                kinds.items()
                >= {(e["sequence_number"], e["type"]) for e in late if e.get("item_id") not in changed}
                or changed
            ), where
            for item, (sent, end) in read_texts(resumed).items():
                # The text of a step that had no reply is nowhere but on its way.
                is_stored = end is not None and end.rstrip() in stored_texts(log) and item not in changed
                assert not is_stored or sent.rstrip() == str(end).rstrip(), (where, item)
            assert resumed[-1]["type"] in ENDS, where
            answer = resumed[-1]["response"]
            voided += sum(item.get("content") == [] for item in answer["output"])
            runs += 1
    assert runs > LOGS
    assert voided > LOGS / 10


ENDS = {"response.completed", "response.incomplete", "response.failed"}


def test_a_position_after_the_last_event_is_an_error() -> None:
    """17.5.4"""
    log = RandomLog(1)
    last = events_of(log, 0, 0, random.Random(0))[-1][0]["sequence_number"]  # noqa: S311 -- no secret
    assert events_of(log, 0, 0, random.Random(0), last) == []  # noqa: S311 -- no secret
    ((error, _),) = events_of(log, 0, 0, random.Random(0), last + 1)  # noqa: S311 -- no secret
    assert (error["type"], error["code"]) == ("error", "invalid_starting_after")
    assert f"has the number {last}" in error["message"]


def test_the_output_of_random_runs_has_the_stored_texts() -> None:
    """17.5.3"""
    for seed in range(LOGS):
        log = RandomLog(seed)
        for segment in range(segments_of(log)):
            events = [event for event, _ in events_of(log, segment, 0, random.Random(0))]  # noqa: S311
            known = stored_texts(log) | {"Which?\n- a\n- b", ""}
            for item in events[-1]["response"]["output"]:
                if item["type"] == "message" and item["status"] == "completed":
                    (part,) = item["content"]
                    assert is_cut(log) or part["text"].rstrip() in known, (seed, segment)


def test_a_text_is_cut_at_the_same_places_however_it_arrives() -> None:
    """17.5.4"""
    dice = random.Random(7)  # noqa: S311 -- no secret
    for _ in range(300):
        text = "".join(
            dice.choice(["a", "word", " ", "  ", "\n", "日本語", "🙂", "x" * 30]) for _ in range(20)
        )
        expected = [*text_pieces(text, 0, is_whole=True)]
        assert "".join(expected) == text
        arrived, received = 0, list[str]()
        while arrived < len(text):
            arrived += dice.randint(1, 9)
            sent = sum(map(len, received))
            received += text_pieces(text[:arrived], sent, is_whole=False)
        received += text_pieces(text, sum(map(len, received)), is_whole=True)
        assert received == expected


def texts_of(response: Any) -> list[Any]:
    return [(item["id"], [part["text"] for part in item.get("content", ())]) for item in response["output"]]


def body_of(log: RandomLog, segment: int) -> bytes:
    """The stream of a response."""
    events = ResponseEvents(ResponseHead(log.root, segment, "clerk", 0))
    received = events_of(log, segment, 0, random.Random(1))  # noqa: S311 -- no secret
    return b"".join(events.frame(dict(event)) for event, _ in received)


async def test_the_sdks_accept_random_runs(tmp_path: Path) -> None:
    """17.5.3: both accumulate what the last event has."""
    logs = [RandomLog(3000 + seed) for seed in range(LOGS)]
    bodies = [body_of(log, segment) for log in logs for segment in range(segments_of(log))]
    path = tmp_path / "streams.json"
    path.write_text(json.dumps([body.decode() for body in bodies]))
    async with openai_viewer() as node:
        node.command("judge", path=str(path))
        await node.until("judged", 1, None, seconds=120)
    verdicts = json.loads(Path(f"{path}.verdicts").read_text())
    assert [verdict["error"] for verdict in verdicts] == [None] * len(bodies)
    for body, verdict in zip(bodies, verdicts, strict=True):
        last = json.loads(body.decode().rpartition("\ndata: ")[2])
        assert texts_of(verdict["response"]) == texts_of(last["response"])
        await judge(body, last)


async def judge(body: bytes, last: Any) -> None:
    """Read a stream with the SDK for Python."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        del request
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with (
        AsyncOpenAI(api_key="none", base_url="http://agents.test/v1", http_client=http) as client,
        client.responses.stream(model="clerk", input="Go") as stream,
    ):
        kinds = [event.type async for event in stream]
        assert kinds[-1] == last["type"]
        if last["type"] == "response.completed":
            final: Any = await stream.get_final_response()
            assert [item.id for item in final.output] == [item["id"] for item in last["response"]["output"]]
