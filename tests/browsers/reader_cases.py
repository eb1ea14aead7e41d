"""Inputs for readers and their outcomes: the table against which every client is tested.

`reader_cases.json` is for readers in all languages. Each case is a list of steps, and each step an array
whose last entry is the outcome:

["take", type, execution_id, seq, payload, "applied" | "dropped" | "resync" | "unreadable"]
["joined", epoch, seq, recovered, null]
["settle", execution_id, step_number, content, null]

After the last step the reader has `position`, and in `texts`, by execution, [content, is_complete]. A change
of the rule needs a new table: `python -m tests.browsers.reader_cases`.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import MAX_REMEMBERED_ENDS, Position, Reader

TABLE = Path(__file__).parent / "reader_cases.json"

Step = list[Any]
Case = dict[str, Any]

ONE, TWO, THREE = (str(UUID(int=number)) for number in range(1, 4))
CHUNK, SNAPSHOT = "agent.stream.chunk", "agent.stream.snapshot"


def read(case: Case) -> Case:
    """The same case, with the outcomes of the reader in Python."""
    since = case.get("since")
    reader = Reader(None if since is None else Position.from_dict(since))
    steps = [[*step, _outcome(reader, step)] for step in case["steps"]]
    texts = {str(of): [draft.content, draft.is_complete] for of, draft in reader.drafts.items()}
    return case | {"steps": steps, "position": reader.position.to_dict(), "texts": texts}


def _outcome(reader: Reader, step: Step) -> str | None:
    match step:
        case ["joined", epoch, seq, recovered]:
            reader.joined(epoch, seq, recovered=recovered)
        case ["settle", execution_id, step_number, content]:
            reader.settle(UUID(execution_id), step_number, content)
        case [_, kind, execution_id, seq, payload]:
            try:
                return str(reader.take(Envelope.from_dict(full_envelope(kind, execution_id, seq, payload))))
            except InvalidInput:
                return "unreadable"
        case _:
            raise AssertionError(step)
    return None


def full_envelope(kind: str, execution_id: str, seq: int | None, payload: Any) -> dict[str, Any]:
    """An envelope, with all fields that readers ignore."""
    return {
        "type": kind,
        "session_id": None,
        "execution_id": execution_id,
        "timestamp": datetime(2026, 1, 16, tzinfo=UTC).isoformat(),
        "payload": payload,
        "id": str(UUID(int=9)),
        "seq": seq,
    }


def without_outcomes(case: Case) -> Case:
    """A case without its outcomes."""
    given = {name: case[name] for name in ("name", "since") if name in case}
    return given | {"steps": [step[:-1] for step in case["steps"]]}


# Steps.


def chunk(at: Sequence[int], content: str = "text ", of: str = ONE) -> Step:
    """A chunk of text; without text, it closes the attempt."""
    step_number, attempt, index = at
    payload = {"content": content, "is_complete": not content, "chunk_index": index}
    return ["take", CHUNK, of, None, payload | {"step_number": step_number, "attempt": attempt}]


def snapshot(at: Sequence[int], content: str = "all of the text ", of: str = ONE) -> Step:
    """A snapshot of the text so far."""
    step_number, attempt, index = at
    payload = {"content": content, "next_index": index, "step_number": step_number, "attempt": attempt}
    return ["take", SNAPSHOT, of, None, payload]


def step_start(seq: int | None, of: str = ONE) -> Step:
    """An envelope that ends nothing."""
    return ["take", "agent.step.started", of, seq, {"step_number": 1}]


def step_end(seq: int, step_number: int = 1, of: str = ONE) -> Step:
    return ["take", "agent.step.completed", of, seq, {"step_number": step_number}]


def attempt_end(seq: int, attempt: int = 1, step_number: int = 1, of: str = ONE) -> Step:
    payload = {"step_number": step_number, "attempt": attempt, "next_attempt": attempt + 1}
    return ["take", "agent.attempt.superseded", of, seq, payload]


def status(seq: int, now: str = "completed", of: str = ONE) -> Step:
    """The status of an execution."""
    return ["take", "agent.status", of, seq, {"status": now}]


def subscription(seq: int, *, recovered: bool, epoch: str = "of-now") -> Step:
    """The reply to a subscription."""
    return ["joined", epoch, seq, recovered]


def settle(step_number: int, content: str = "the message", of: str = ONE) -> Step:
    return ["settle", of, step_number, content]


def _without(step: Step, name: str) -> Step:
    return [*step[:-1], {key: value for key, value in step[-1].items() if key != name}]


def _with(step: Step, **changed: Any) -> Step:
    return [*step[:-1], step[-1] | changed]


def by_hand() -> dict[str, list[Step]]:
    """Cases that deserve a name."""
    some = [chunk((1, 1, index), f"{index} ") for index in range(3)]
    return {
        "nothing": [],
        "stored, in order": [step_start(1), step_start(2), step_start(3)],
        "stored twice and late": [step_start(1), step_start(1), step_start(2), step_start(1), step_start(3)],
        "a hole that is filled": [step_start(1), step_start(3), step_start(2), step_start(3)],
        "one that is not known to readers": [["take", "agent.news", ONE, 1, {}], step_start(2)],
        "streamed, and not known to readers": [["take", "agent.news", ONE, None, {}], step_start(None)],
        "text, in order": [*some, chunk((1, 1, 3), "")],
        "text twice and late": [some[0], some[0], some[1], some[0], some[2], some[1]],
        "a hole in the text": [some[0], some[2], some[1], some[2]],
        "text from the middle": [some[2], some[0], some[1], some[2]],
        "a snapshot for who came late": [
            some[2],
            snapshot((1, 1, 3), "0 1 2 "),
            some[2],
            chunk((1, 1, 3), ""),
        ],
        "a snapshot that says nothing new": [*some, snapshot((1, 1, 3)), snapshot((1, 1, 2))],
        "a snapshot of the beginning": [snapshot((1, 1, 0), ""), some[0]],
        "a snapshot after the end of the text": [*some, chunk((1, 1, 3), ""), snapshot((1, 1, 3))],
        "a snapshot of a later attempt": [*some, snapshot((1, 2, 1), "anew "), some[0], chunk((1, 2, 1))],
        "a snapshot of an earlier attempt": [chunk((1, 2, 0)), snapshot((1, 1, 9)), snapshot((0, 3, 9))],
        "a later attempt": [*some, chunk((1, 2, 0), "anew "), chunk((1, 1, 3)), chunk((1, 2, 1))],
        "a later attempt from its middle": [*some, chunk((1, 2, 1)), chunk((1, 2, 0)), chunk((1, 1, 3))],
        "a later step before the end of the first": [*some, chunk((2, 1, 0)), step_end(1), chunk((2, 1, 1))],
        "superseded before the later attempt": [*some, attempt_end(1), chunk((1, 1, 3)), chunk((1, 2, 0))],
        "superseded after the later attempt": [*some, chunk((1, 2, 0)), attempt_end(1), chunk((1, 2, 1))],
        "superseded, and nothing was seen": [attempt_end(1), chunk((1, 1, 0)), chunk((1, 2, 0))],
        "superseded in step 0": [attempt_end(1, 1, 0), chunk((0, 1, 0)), chunk((0, 2, 0))],
        "superseded when it is over": [chunk((2, 1, 0)), attempt_end(1), chunk((2, 1, 1))],
        "superseded twice": [*some, attempt_end(1), attempt_end(2, 2), chunk((1, 2, 0)), chunk((1, 3, 0))],
        "the end of a step": [*some, step_end(1), chunk((1, 1, 3)), chunk((1, 2, 0)), chunk((2, 1, 0))],
        "the end of a step that was not seen": [step_end(1, 3), chunk((3, 9, 0)), chunk((4, 1, 0))],
        "the end of a step comes late": [chunk((5, 1, 0)), step_end(1, 3), chunk((5, 1, 1))],
        "the end that is not the next": [*some, step_end(2), chunk((1, 1, 3))],
        "the message of a step": [*some, settle(1), chunk((1, 1, 3)), chunk((2, 1, 0))],
        "the message before the end": [*some, settle(1), step_end(1)],
        "the message of a step that is over": [chunk((2, 1, 0)), settle(1), chunk((2, 1, 1))],
        "the message of a step to come": [*some, settle(2), chunk((2, 1, 0)), chunk((3, 1, 0))],
        "the message of nobody": [settle(1), some[0]],
        "step 0": [chunk((0, 1, 0)), settle(0), chunk((0, 1, 1)), chunk((1, 1, 0))],
        "two executions": [
            some[0],
            chunk((3, 2, 0), "other ", TWO),
            some[1],
            step_end(1, 1, TWO),
            status(2),
        ],
        "every end of an execution": [
            each
            for seq, now in enumerate(("completed", "failed", "stopped", "cancelled"), 1)
            for of in (str(UUID(int=seq)),)
            for each in (chunk((1, 1, 0), of=of), status(seq, now, of), chunk((1, 1, 1), of=of))
        ],
        "no end of an execution": [
            *some,
            *(status(seq, now) for seq, now in enumerate(("idle", "processing", "paused", "other"), 1)),
            chunk((1, 1, 3)),
        ],
        "after the end": [
            *some,
            status(1),
            chunk((2, 1, 0)),
            snapshot((2, 1, 5)),
            step_start(2),
            step_end(3, 2),
        ],
        "after the end, unreadable": [status(1), ["take", CHUNK, ONE, None, {}]],
        "recovered": [
            subscription(0, recovered=True),
            step_start(1),
            *some,
            subscription(1, recovered=True),
            chunk((1, 1, 3)),
        ],
        "not recovered": [
            *(step_start(1), *some, status(2, of=TWO)),
            *(
                subscription(7, recovered=False),
                step_start(3),
                step_start(8),
                some[0],
                chunk((1, 1, 0), of=TWO),
            ),
        ],
        "another epoch": [subscription(0, recovered=True), subscription(3, recovered=False, epoch="of-then")],
        "unreadable": [
            *(["take", CHUNK, ONE, None, {}], _without(some[0], "is_complete"), _with(some[0], content=5)),
            *(
                _with(some[0], content="half \ud83d"),
                _with(some[0], content="nul \0"),
                _with(some[0], attempt=0),
            ),
            *(_with(some[0], chunk_index=-1), _with(some[0], step_number=None), _with(some[0], attempt=True)),
            *(_with(snapshot((1, 1, 2)), content=None), _with(snapshot((1, 1, 2)), next_index="2")),
            *(step_start(0), step_start(-1), [*chunk((1, 1, 0))[:3], 1, some[0][-1]]),
            *(_without(step_end(1), "step_number"), _without(attempt_end(1), "next_attempt")),
            *(_without(status(1), "status"), step_start(1), *some),
        ],
        "unreadable, and dropped": [step_start(1), ["take", "agent.step.completed", ONE, 1, {}]],
        "unreadable, and early": [step_start(1), ["take", "agent.step.completed", ONE, 3, {}]],
        "whole characters": [chunk((1, 1, 0), "\U0001f600 "), chunk((1, 1, 1), "e\u0301 \u2028 \u05d0")],
    }


def forgotten_end() -> Case:
    """More ends than a reader remembers; too long for the table."""
    ends = [status(seq, of=str(UUID(int=seq))) for seq in range(1, MAX_REMEMBERED_ENDS + 1)]
    late = [chunk((1, 1, 0), of=each) for each in (ONE, TWO)]
    again, one_more = (
        status(MAX_REMEMBERED_ENDS + 1),
        status(MAX_REMEMBERED_ENDS + 2, of=str(UUID(int=2**64))),
    )
    return {"name": "an end that is forgotten", "steps": [late[0], *ends, again, *late, one_more, *late]}


SINCE: dict[str, Any] = {
    "from the beginning": {"seq": 0},
    "from a place": {"seq": 3, "epoch": "of-now"},
    "from a place within a text": {
        "seq": 3,
        "epoch": "of-now",
        "drafts": [{"execution_id": ONE, "step_number": 2, "attempt": 1, "next_index": 2}],
    },
}


def resume_cases() -> Iterator[Case]:
    """Readers that reconnect with a position."""
    for name, since in SINCE.items():
        joins = {
            "": subscription(since["seq"], recovered=True),
            ", and in vain": subscription(9, recovered=False),
        }
        for how, answer in joins.items():
            after = [snapshot((2, 1, 2)), chunk((2, 1, 2)), step_start(4), step_start(10), step_start(1)]
            yield {"name": name + how, "since": since, "steps": [answer, *after]}


# Random cases.


def story(dice: Random) -> list[Step]:
    """The envelopes of two executions, in order."""
    steps: list[Step] = []
    seq = 0
    places = {ONE: [1, 1, 0], TWO: [1, 1, 0]}
    while len(steps) < 30 and places:
        of = dice.choice(list(places))
        place = places[of]
        step_number, attempt, index = place
        happens = dice.random()
        if happens < 0.6:
            steps.append(chunk(place, f"{of[-1]}.{step_number}.{attempt}.{index} ", of))
            place[2] += 1
        elif happens < 0.7:
            steps.append(chunk(place, "", of))
            place[2] += 1
        else:
            seq += 1
            if happens < 0.8:
                steps.append(attempt_end(seq, attempt, step_number, of))
                place[1:] = attempt + 1, 0
            elif happens < 0.9:
                steps.append(step_end(seq, step_number, of))
                place[:] = step_number + 1, 1, 0
            elif happens < 0.95:
                steps.append(step_start(seq, of))
            else:
                steps.append(status(seq, dice.choice(["paused", "failed"]), of))
                if steps[-1][-1] == {"status": "failed"}:
                    del places[of]
    return steps


def disturbed_story(dice: Random) -> list[Step]:
    """A story in which envelopes are lost, duplicated and late, and the reader sometimes reconnects."""
    received: list[tuple[float, Step]] = []
    for at, each in enumerate(story(dice)):
        if dice.random() < 0.95:
            received.append((at + dice.choice([0, 0, 0, 0, 0, 1.5, 4]), each))
        if dice.random() < 0.15:
            received.append((at + dice.randrange(8), each))
        if dice.random() < 0.06:
            place = (dice.randint(1, 3), dice.randint(1, 3), dice.randrange(5))
            received.append(
                (at + 0.5, snapshot(place, f"all before {place} ", dice.choice([ONE, TWO, THREE])))
            )
        if dice.random() < 0.03:
            received.append((at, subscription(dice.randrange(6), recovered=dice.random() < 0.5)))
        if dice.random() < 0.03:
            received.append((at, settle(dice.randint(1, 3), of=dice.choice([ONE, TWO, THREE]))))
    return [each for _, each in sorted(received, key=lambda entry: entry[0])]


def anything(seed: int, size: int) -> Iterator[Case]:
    """This many stories; the same ones for the same seed."""
    dice = Random(seed)  # noqa: S311 -- no secret
    for number in range(size):
        yield {"name": f"anything {seed}.{number}", "steps": disturbed_story(dice)}


def table_text(cases: Iterable[Case]) -> str:
    """One line for each case. In ASCII, so that half a surrogate pair can be written."""
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    return f"[\n{lines}\n]\n"


def build_cases() -> list[Case]:
    named = [{"name": name, "steps": steps} for name, steps in by_hand().items()]
    return [read(case) for case in (*named, *resume_cases(), *anything(1, 30))]


if __name__ == "__main__":
    TABLE.write_text(table_text(build_cases()))
