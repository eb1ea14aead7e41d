"""A reader of a random log over lossy connections, which is cut at any event and goes on."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from everstep.agent_domain.stream.envelope_types import EnvelopeType
from everstep.agent_domain.values import json_text
from everstep.wires.event_bodies import NO_BODIES
from everstep.wires.projections import Numbering, Projection
from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_log import RunLog, Start
from tests.wires.random_logs import RandomLog


class Frame(NamedTuple):
    """An event of a wire, and its id."""

    event: dict[str, Any]
    id: str
    moment: int
    """When it was sent: the index in the timeline."""


MakeProjection = Callable[[], Projection]


def connection(
    log: RandomLog, make: MakeProjection, start: Start, joined: int, dice: random.Random
) -> Iterator[Frame]:
    """The frames of one connection, which begins at a moment of the timeline."""
    run, projection = RunLog(log.root, start, epoch="e"), make()
    numbering = Numbering(projection, start)
    for moment, envelope in delivered(log, joined, dice):
        # The gateway sends the bytes that a writer has encoded.
        received = json.loads(json_text(envelope))
        bodies = NO_BODIES
        while needs := run.needs(received, bodies):
            bodies = log.load(needs, bodies)
        for taken in run.take(received, bodies):
            for event, cursor in numbering.encode(taken):
                yield Frame(json.loads(json_text(event)), str(cursor), moment)


def delivered(log: RandomLog, joined: int, dice: random.Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """What a gateway sends to a viewer that joins at a moment, and when."""
    is_lossy = dice.random() < 0.3
    for moment, envelope in enumerate(log.timeline):
        is_text = envelope["seq"] is None
        texts = [*log.open_texts[moment - 1].values()] if moment else []
        if moment == joined:
            yield from ((moment, snapshot) for snapshot in texts)
        elif moment < joined and envelope["type"] == EnvelopeType.AGENT_STEP_COMPLETED:
            # A gateway that has the text still in memory sends it before the end of its step.
            yield from ((joined, snapshot) for snapshot in texts if dice.random() < 0.5)
        is_lost = is_text and (moment < joined or (is_lossy and dice.random() < 0.3))
        if not is_lost:
            yield max(moment, joined), envelope
    if joined >= len(log.timeline):
        yield from ((joined, snapshot) for snapshot in log.open_texts[-1].values())


def uncut(log: RandomLog, make: MakeProjection) -> Sequence[Frame]:
    """What a reader receives that watches from the begin."""
    return [*connection(log, make, None, 0, random.Random(0))]  # noqa: S311 -- no secret


def with_cuts(log: RandomLog, make: MakeProjection, dice: random.Random) -> Sequence[Frame]:
    """What a reader receives that is cut a few times, and resumes at its last event."""
    received: list[Frame] = []
    start: Start = None
    joined = dice.randint(0, len(log.timeline)) if dice.random() < 0.5 else 0
    for _ in range(dice.randint(1, 5)):
        frames = connection(log, make, start, joined, dice)
        for _ in range(dice.randint(0, 8)):
            frame = next(frames, None)
            if frame is None:
                break
            received.append(frame)
        if received:
            start = RunCursor.parse(received[-1].id)
            joined = dice.randint(min(received[-1].moment + 1, len(log.timeline)), len(log.timeline))
    received += connection(log, make, start, joined, dice)
    return received
