"""Measures a what-if: how many past executions it examines in a minute, and in how much memory.

Writes 10,000 executions of 10 steps straight into PostgreSQL, as workers would have recorded them, with every
stop reason. Then a process examines 1,000 of them, and another one all, under the recorded policy. Prints
executions per minute, the peak memory of both, and the decisions that were not reproduced. Fails if the speed
or the memory misses its target, or if one decision is not reproduced.

    python bench/what_if.py [--executions N]
"""

import argparse
import asyncio
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from figures import line, mark
from psycopg import sql

from everstep.agent_domain.agents.plan import CriterionRef, ExecutionPlan
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import Infer, Stop, decide
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason, final_situation
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import frozen_map, json_text
from everstep.agent_domain.what_if.repeating import ChangedEnd
from everstep.client.what_if import WhatIf
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import upgrade
from everstep.runtime.settings import Settings
from everstep.store import bodies
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore

STEPS: Final = 10
PART: Final = 1_000
TARGET_PER_MINUTE: Final = 10_000
TARGET_GROWTH: Final = 1.25
"""Examining ten times as many executions may take so many times the memory."""

START: Final = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Story:
    """An execution of ten steps, and how it ends."""

    reason: StopReason
    plan: ExecutionPlan
    fails: bool = False
    finish_reason: str = "tool_calls"
    is_same_call: bool = False
    answers: bool = False
    signal: StopSignal | None = None


def plan(**fields: Any) -> ExecutionPlan:
    """A plan of the usual base set."""
    usual = {
        "agent": "bench",
        "max_steps": 50,
        "max_tokens": 10**6,
        "timeout_seconds": 600,
        "finish_reasons": (),
    }
    return ExecutionPlan.model_validate(usual | fields)


def retry_limit(failures: int) -> CriterionRef:
    """A registered criterion of a plan."""
    return CriterionRef(name="RetryLimit", params=frozen_map({"max_failures": failures}))


STORIES: Final = (
    Story(StopReason.COMPLETED, plan(), answers=True),
    Story(StopReason.STEPS_LIMIT, plan(max_steps=STEPS)),
    Story(StopReason.TOKEN_LIMIT, plan(max_tokens=STEPS * 120)),
    Story(StopReason.TIME_LIMIT, plan(timeout_seconds=STEPS * 1.5)),
    Story(
        StopReason.RETRY_LIMIT,
        plan(error_policy=ErrorPolicy.ignore_tool_errors(), criteria=(retry_limit(STEPS),)),
        fails=True,
    ),
    Story(StopReason.ERROR, plan(error_policy=ErrorPolicy.retry_all(STEPS)), fails=True),
    Story(StopReason.FINISH_REASON, plan(finish_reasons=("content_filter",)), finish_reason="content_filter"),
    Story(StopReason.GUARD, plan(repeated_call_limit=STEPS), is_same_call=True),
    Story(StopReason.USER_REQUESTED, plan(), signal=StopSignal(StopReason.USER_REQUESTED, "Cancelled")),
)


@dataclass
class Rows:
    """The rows of an execution, without its id."""

    story: Story
    steps: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    calls: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    status: ExecutionStatus = ExecutionStatus.RUNNING

    def conclude(self, facts: ExecutionFacts, now: datetime, outcome: ContinuationOutcome) -> None:
        """Record the outcome with the last step."""
        elapsed, worked = facts.at(now).clock
        boundary = bodies.dump_boundary(Boundary(elapsed, worked))
        self.steps[-1] = (*self.steps[-1][:4], json_text(outcome.to_dict()), boundary, now)


def told(story: Story) -> Rows:
    """Run a story with the loop's own decisions; keep its rows."""
    rows, rules, now = Rows(story), story.plan.rules(), START
    facts = ExecutionFacts.begun(None, now)
    while True:
        decision = decide(facts, rules, now)
        match decision:
            case Infer(outcome=outcome):
                if outcome and facts.is_applied:
                    rows.conclude(facts, now, outcome)
                    facts = facts.recorded(outcome)
                facts = _take(rows, facts.step_started(now), now)
                now += timedelta(seconds=1.5)
                if story.signal and facts.step_count == STEPS:
                    facts = facts.signalled(story.signal).abandoned()
            case Stop(outcome):
                rows.conclude(facts, now, outcome)
                ended = facts.ended(outcome, rules.error_policy)
                rows.status = final_situation(ended.status, outcome.stop_reason).execution
                found = outcome.stop_reason, facts.step_count
                if found != (story.reason, STEPS):
                    raise AssertionError(f"{found} instead of {story.reason} after {STEPS} steps")
                return rows
            case _:
                raise AssertionError(decision)


def _take(rows: Rows, facts: ExecutionFacts, now: datetime) -> ExecutionFacts:
    story, number = rows.story, facts.next_step_number
    is_last = number == STEPS
    reason = story.finish_reason if is_last else "tool_calls"
    answers = story.answers and is_last
    made = () if answers else (CallFacts(f"call-{number}", "look"),)
    reply = StepFacts(number, made, "stop" if answers else reason, Usage(100, 20), seconds=1.0)
    rows.steps.append((number, 1, bodies.dump_facts(reply), now, None, None, now))
    if answers:
        return facts.with_step(reply)
    error = StepError("", ErrorType.TOOL, "look", "Oops") if story.fails else None
    digest = "00000000" if story.is_same_call else f"{number:08x}"
    stored = error and json_text(replace(error, message="It failed").to_dict())
    rows.calls.append(
        (
            f"call-{number}",
            number,
            0,
            "look",
            "{}",
            "run",
            "",
            "done",
            stored,
            not story.fails,
            now,
            now,
            0.5,
            digest,
        )
    )
    result = CallFacts(f"call-{number}", "look", error=error, digest=digest)
    return facts.with_step(reply).with_step(reply.settled((result,), 0.5))


EXECUTION_COLUMNS: Final = (
    "id, tenant_id, agent_type, agent_config, status, plan, step_count, agent_id, stop_reason, created_at, "
    "started_at, completed_at"
)
STEP_COLUMNS: Final = (
    "execution_id, tenant_id, number, attempt, facts, started_at, outcome, boundary, completed_at, response"
)
CALL_COLUMNS: Final = (
    "execution_id, tenant_id, call_id, step, idx, name, args, need, args_digest, state, error, success, "
    "started_at, completed_at, seconds, digest"
)
RESPONSE: Final = json_text({"model": "bench-1", "content": "x" * 2000})
"""The body that a step has; a what-if does not read it."""


def copy_into(table: str, columns: str) -> sql.Composed:
    """The command that writes rows of a table."""
    names = map(sql.Identifier, columns.split(", "))
    return sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), sql.SQL(", ").join(names))


def fill(url: str, executions: int) -> None:
    """Write the executions."""
    stories = [told(story) for story in STORIES]
    ids = [uuid4() for _ in range(executions)]

    def each() -> Iterator[tuple[int, UUID, Rows]]:
        for number, execution_id in enumerate(ids):
            yield number, execution_id, stories[number % len(stories)]

    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        with cursor.copy(copy_into("agent_executions", EXECUTION_COLUMNS)) as copy:
            for number, execution_id, rows in each():
                story = rows.story
                data = story.plan.model_dump_json()
                config = json_text({"agent": "bench", "llm_preset": "small"})
                at = START + timedelta(seconds=number)
                end = START + timedelta(minutes=1)
                row = (execution_id, DEFAULT_TENANT, "bench", config, str(rows.status), data, STEPS)
                copy.write_row((*row, execution_id, str(story.reason), at, START, end))
        with cursor.copy(copy_into("agent_steps", STEP_COLUMNS)) as copy:
            for _, execution_id, rows in each():
                for step in rows.steps:
                    copy.write_row((execution_id, DEFAULT_TENANT, *step, RESPONSE))
        with cursor.copy(copy_into("agent_tool_calls", CALL_COLUMNS)) as copy:
            for _, execution_id, rows in each():
                for call in rows.calls:
                    copy.write_row((execution_id, DEFAULT_TENANT, *call))
        cursor.execute("ANALYZE")


@dataclass(frozen=True)
class Measured:
    """One examination."""

    examined: int
    decisions: int
    not_reproduced: int
    seconds: float
    cpu_seconds: float
    peak_mb: float

    @property
    def per_minute(self) -> float:
        """Executions per minute."""
        return 60 * self.examined / self.seconds


async def examine(url: str, limit: int) -> Measured:
    """Examine executions under the recorded policy."""
    engine = create_engine(url)
    what_if = WhatIf(PostgresStore(engine), Scope(), limit=limit)
    began, cpu_began = time.perf_counter(), time.process_time()
    report = await what_if.run()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    await engine.dispose()
    unlike = report.endings[ChangedEnd.UNDETERMINED] + report.differing
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(report.examined, report.decisions, unlike, seconds, cpu_seconds, peak)


def examine_alone(arguments: tuple[str, int]) -> Measured:
    """Examine in a process of its own, whose memory is measured."""
    return asyncio.run(examine(*arguments))


async def measure(executions: int) -> tuple[Measured, Measured]:
    """Write executions into a new database, and examine a part of them, then all."""
    with TemporaryDirectory() as folder:
        async with open_services(EmbeddedConfig(Path(folder), 0, 0)) as services:
            url = services.database_url
            settings = Settings(database_url=url, temporal_address=services.temporal_address)
            await upgrade(settings)
            plain = create_engine(url).url.set(drivername="postgresql").render_as_string(hide_password=False)
            await asyncio.to_thread(fill, plain, executions)
            context = multiprocessing.get_context("spawn")
            parts = list[Measured]()
            for limit in (min(PART, executions), executions):
                with context.Pool(1) as pool:
                    parts.append(await asyncio.to_thread(pool.apply, examine_alone, ((url, limit),)))
            return parts[0], parts[1]


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--executions", type=int, default=10_000)
    some, every = asyncio.run(measure(parser.parse_args().executions))
    growth, unlike = every.peak_mb / some.peak_mb, some.not_reproduced + every.not_reproduced
    parts = (some, every)
    rows = (
        (
            "executions a minute",
            [f"{part.per_minute:,.0f}" for part in parts],
            "",
            f">= {TARGET_PER_MINUTE:,}",
        ),
        ("memory", [f"{part.peak_mb:,.0f} MB" for part in parts], f"{growth:.2f}", f"<= {TARGET_GROWTH:.2f}"),
        ("decisions not reproduced", [str(part.not_reproduced) for part in parts], "", "<= 0"),
    )
    verdicts = (every.per_minute < TARGET_PER_MINUTE, growth > TARGET_GROWTH, unlike > 0)
    line("", *(f"{part.examined:,} executions" for part in parts), "ratio", "target")
    for (name, values, ratio, target), is_missed in zip(rows, verdicts, strict=True):
        line(name, *values, ratio, target, mark(is_missed))
    line("decisions", *(f"{part.decisions:,}" for part in parts))
    line("CPU", *(f"{part.cpu_seconds:.1f} s" for part in parts))
    return int(any(verdicts))


if __name__ == "__main__":
    sys.exit(main())
