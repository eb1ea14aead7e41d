"""Scripted runs over bare facts that leave a record, as the store has it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import AwaitResume, Infer, Process, RunTools, Stop, decide
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason, final_situation
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides, CallFacts, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.recorded_executions import (
    RecordedCall,
    RecordedExecution,
    RecordedProcessing,
    RecordedStep,
)
from everstep.agent_domain.values import frozen_map
from tests.scenarios import START

EXECUTION = UUID(int=7)


@dataclass(frozen=True)
class Call:
    """A tool call; its result has this digest."""

    name: str = "look"
    fails: bool = False
    seconds: float = 0.0
    digest: str = "same"
    besides: Besides = NOTHING_BESIDES
    starts_child: bool = False


@dataclass(frozen=True)
class ScriptedStep:
    """What happens in a step, whatever the policy is."""

    calls: tuple[Call, ...] = ()
    usage: Usage = Usage(10, 5)
    finish_reason: str = "stop"
    raises: Exception | None = None
    seconds: float = 1.0
    waits: float = 0.0
    """Seconds that pass without work."""
    steered: int = 0
    besides: Besides = NOTHING_BESIDES
    processing: RecordedProcessing | None = None


ANSWER = ScriptedStep()
LOOK = ScriptedStep((Call(),))
FAIL = ScriptedStep((Call("bad", fails=True),))


@dataclass
class Recorder:
    """A shell of the loop that runs a script and keeps the rows of a store."""

    plan: ExecutionPlan
    script: Sequence[ScriptedStep]
    rows: list[RecordedStep] = field(default_factory=list[RecordedStep])
    now: datetime = START
    facts: ExecutionFacts = field(default_factory=ExecutionFacts)
    """The facts when the script ended."""

    def run(self) -> RecordedExecution:
        """Run the script to its end; an endless one ends with the script."""
        rules, facts = self.plan.rules(), ExecutionFacts.begun(None, START)
        script = iter(self.script)
        while True:
            decision = decide(facts, rules, self.now)
            match decision:
                case Infer(outcome=outcome, hears=hears):
                    step = next(script, None)
                    if step is None:
                        self.facts = facts
                        return self.record(ExecutionStatus.RUNNING, None)
                    if facts.is_applied and outcome:
                        self.conclude(facts, outcome)
                        facts = facts.recorded(outcome)
                    facts = self.take(facts.step_started(self.now, hears), step)
                case Process():
                    facts = self.process(facts)
                case AwaitResume():
                    facts = facts.resumed(self.now)
                case Stop(outcome):
                    if facts.is_applied:
                        self.conclude(facts, outcome)
                    facts = facts.ended(outcome, self.plan.error_policy)
                    self.keep_raised(facts, outcome)
                    return self.record(
                        final_situation(facts.status, outcome.stop_reason).execution, outcome.stop_reason
                    )
                case RunTools() | _:
                    raise AssertionError(decision)

    def take(self, facts: ExecutionFacts, step: ScriptedStep) -> ExecutionFacts:
        """Take a step, and leave its row."""
        number = facts.next_step_number
        self.now += timedelta(seconds=step.seconds + step.waits)
        if step.raises:
            failure = StepFacts.failure(number, StepError.of(step.raises), step.seconds)
            failure = replace(failure, usage=step.usage, besides=step.besides)
            self.rows.append(RecordedStep(number, failure, completed_at=self.now))
            return facts.with_step(failure)
        made = tuple(CallFacts(f"{number}-{index}", call.name) for index, call in enumerate(step.calls))
        reply = StepFacts(
            number, made, step.finish_reason, step.usage, seconds=step.seconds, besides=step.besides
        )
        facts = facts.with_step(reply)
        results = tuple(map(_recorded, made, step.calls))
        self.rows.append(
            RecordedStep(number, reply, results, completed_at=self.now, processing=step.processing)
        )
        if results and facts.current_step:
            self.now += timedelta(seconds=max(result.seconds for result in results))
            facts = facts.with_step(
                facts.current_step.settled(
                    (CallFacts(r.id, r.name, error=r.error, digest=r.digest) for r in results),
                    max(result.seconds for result in results),
                    sum((result.besides for result in results), NOTHING_BESIDES),
                )
            )
        return facts.steered_by(step.steered) if step.steered else facts

    def process(self, facts: ExecutionFacts) -> ExecutionFacts:
        """Apply what the processors of the last step did."""
        done = self.rows[-1].processing or RecordedProcessing(0.0)
        self.rows[-1] = replace(self.rows[-1], processing=done)
        facts = facts.processed().spent(done.besides.usage).wished(done.besides.wishes)
        if done.error is None:
            return facts.worked(done.seconds)
        facts = facts.failed(done.error, done.seconds)
        assert facts.current_step
        self.rows.append(RecordedStep(len(self.rows) + 1, facts.current_step, completed_at=self.now))
        return facts

    def conclude(self, facts: ExecutionFacts, outcome: ContinuationOutcome) -> None:
        """Record the outcome with the last step, unless a criterion raised."""
        if outcome.failure:
            return
        elapsed, worked = facts.at(self.now).clock
        boundary = Boundary(elapsed, worked, facts.steered)
        data = frozen_map(outcome.to_dict())
        self.rows[-1] = replace(self.rows[-1], outcome=data, boundary=boundary)

    def keep_raised(self, facts: ExecutionFacts, outcome: ContinuationOutcome) -> None:
        """Record the failure step of a criterion that raised."""
        if outcome.failure and facts.current_step:
            data = frozen_map(outcome.to_dict())
            elapsed, worked = facts.at(self.now).clock
            boundary = Boundary(elapsed, worked)
            self.rows.append(
                RecordedStep(len(self.rows) + 1, facts.current_step, outcome=data, boundary=boundary)
            )

    def record(self, status: ExecutionStatus, reason: StopReason | None) -> RecordedExecution:
        """The record of the run."""
        return RecordedExecution(
            ExecutionRef(EXECUTION),
            self.plan.agent,
            status,
            reason,
            frozen_map(self.plan.model_dump(mode="json")),
            tuple(self.rows),
            START,
            START,
            self.now if status.is_terminal else None,
            len(self.rows),
        )


def _recorded(made: CallFacts, call: Call) -> RecordedCall:
    error = StepError("", ErrorType.TOOL, call.name) if call.fails else None
    return RecordedCall(
        made.id, made.name, True, error, call.seconds, call.besides, call.digest, call.starts_child
    )


def recorded_run(plan: ExecutionPlan, script: Iterable[ScriptedStep]) -> RecordedExecution:
    """The record of a scripted run."""
    return Recorder(plan, tuple(script)).run()
