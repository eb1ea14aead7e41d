"""Random runs as events: in the order that AG-UI demands, each once, however often a reader is cut."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.wires.ag_ui import AgUi
from everstep.wires.run_cursors import MAX_CURSOR, RunCursor, SentText
from everstep.wires.thread_messages import message_id
from tests.wires.ag_ui_reader import AgUiReader
from tests.wires.random_logs import RandomLog
from tests.wires.readers import Frame, uncut, with_cuts

LOGS = 60
CUTS = 4


def projection(log: RandomLog) -> AgUi:
    return AgUi("thread", "run", log.root)


def is_counted(event: Mapping[str, Any]) -> bool:
    return not event["type"].startswith("TEXT_MESSAGE") and event["type"] != "MESSAGES_SNAPSHOT"


def counted(frames: Sequence[Frame]) -> list[Mapping[str, Any]]:
    """The events that do not depend on chunks."""
    return [frame.event for frame in frames if is_counted(frame.event)]


def read_all(frames: Sequence[Frame]) -> AgUiReader:
    # The client has the message that begins the run.
    reader = AgUiReader({"id": "m", "role": "user", "content": "Go"})
    for frame in frames:
        reader.read(frame.event)
    return reader


def unfinished(log: RandomLog) -> set[str]:
    """Messages of steps whose reply was never stored: a reader has what it received of them."""
    steps = {
        (envelope["execution_id"], envelope["payload"]["step_number"])
        for envelope in log.stored
        if envelope["type"] == "agent.step.started"
    }
    return {message_id(*step) for step in steps - log.steps.keys()}


@pytest.mark.parametrize("block", range(2))
def test_a_reader_that_is_cut_receives_every_event_once(block: int) -> None:
    """17.1.6, 17.2.3, 17.2.4"""
    kinds = Counter[str]()
    for seed in range(block * LOGS, (block + 1) * LOGS):
        log = RandomLog(seed)
        make = partial(projection, log)
        whole = uncut(log, make)
        kinds.update(frame.event["type"] for frame in whole)
        seen = read_all(whole)
        for cut in range(CUTS):
            frames = with_cuts(log, make, random.Random(f"{seed}/{cut}"))  # noqa: S311 -- no secret
            assert counted(frames) == counted(whole), (seed, cut)
            resumed = read_all(frames)
            known = unfinished(log)
            assert {id_: said for id_, said in resumed.contents.items() if id_ not in known} == {
                id_: said for id_, said in seen.contents.items() if id_ not in known
            }, (seed, cut)
            assert (resumed.state, resumed.outcome) == (seen.state, seen.outcome)
    assert {
        "SUBAGENT_STARTED",
        "STATE_DELTA",
        "REASONING_START",
        "MESSAGES_SNAPSHOT",
        "CUSTOM",
    } <= kinds.keys()


def test_what_was_stored_wins_over_the_text_that_was_sent() -> None:
    """17.1.6"""
    dropped = 0
    for seed in range(LOGS):
        log = RandomLog(seed)
        frames = uncut(log, partial(projection, log))
        reader = read_all(frames)
        dropped += any(frame.event["type"] == "MESSAGES_SNAPSHOT" for frame in frames)
        for envelope in log.stored:
            if envelope["type"] == "agent.step.completed":
                step = envelope["execution_id"], envelope["payload"]["step_number"]
                said = reader.messages.get(message_id(*step), {}).get("content") or ""
                assert said.rstrip() == log.steps[step].text.rstrip(), seed
    assert dropped


def test_a_cursor_is_read_as_it_was_written() -> None:
    """17.2.3"""
    root, other = RandomLog(1).root, RandomLog(2).root
    texts = {root: SentText(3, 2, 17, 0xDEADBEEF), other: SentText(1, 1, 0, 0, is_closed=True)}
    cursor = RunCursor(root, 12, 3, 1, texts, "epoch:1")
    assert RunCursor.parse(str(cursor)) == cursor
    assert RunCursor.parse(str(RunCursor(root, epoch="e"))) == RunCursor(root, epoch="e")
    for wrong in (
        "",
        "7",
        str(cursor)[1:],
        f"{cursor}\n",
        str(cursor).partition("@")[0],
        "x" * (MAX_CURSOR + 1),
    ):
        with pytest.raises(InvalidInput, match="not the id of an event"):
            RunCursor.parse(wrong)
