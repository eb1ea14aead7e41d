"""The part of the agent builder that sets limits and what happens after failures."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, Self

from pydantic import ValidationError

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.agents.builder_arguments import (
    require_count,
    require_seconds,
    require_type,
    require_whole,
)
from everstep.agent_domain.agents.compaction_policy import DEFAULT_COMPACTION, CompactionPolicy
from everstep.agent_domain.agents.plan import CumulativeTimeout, Profile
from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.budget import Budget, BudgetScope, BudgetUnit
from everstep.agent_domain.loop.criteria import CumulativeExecutionTimeLimit, ExecutionTimeLimit
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.values import valid_text


class LimitsBuilder:
    """The limits of an agent, and its policy for failures."""

    def __init__(self) -> None:
        self._max_steps: int | None = None
        self._max_tokens: int | None = None
        self._repeated_calls: int | None = None
        self._last_turn_without_tools = False
        self._timeout: float | None = None
        self._cumulative: CumulativeTimeout | None = None
        self._finish_reasons: tuple[str, ...] | None = None
        self._error_policy = ErrorPolicy()
        self._model_attempts: int | None = None
        self._retry_seconds: float | None = None
        self._compaction: CompactionPolicy | None = None
        self._profile = Profile.REGULAR
        self._budgets: dict[tuple[BudgetScope, BudgetUnit], Budget] = {}

    def with_max_steps(self, steps: int) -> Self:
        """Limit the number of steps; 0 executes nothing."""
        self._max_steps = require_count("with_max_steps", steps)
        return self

    def with_max_tokens(self, tokens: int) -> Self:
        """Start no further step once this many tokens were used."""
        self._max_tokens = require_count("with_max_tokens", tokens)
        return self

    def with_budget(
        self,
        *,
        usd: float | Decimal | None = None,
        tokens: int | None = None,
        steps: int | None = None,
        on_exhausted: Literal["stop", "ask", "degrade"] = "stop",
        scope: Literal["execution", "session", "user", "tenant"] = "execution",
        degrade_to: str | None = None,
    ) -> Self:
        """Limit what model calls may use together; it is reserved before each call, and settled after it.

        May be called several times; a later budget replaces an earlier one of the same scope and unit.

        Args:
            usd: US dollars. The prices of the model have to be known.
            tokens: Tokens, of input and output.
            steps: Steps, including those of subagents.
            on_exhausted: What follows when the budget does not cover the next call: `stop` ends the
                execution, `ask` pauses it until a person raises the budget, `degrade` asks a cheaper preset.
            scope: Which executions of this agent share the budget: an execution with its subagents, or all
                of a session, a user or a tenant.
            degrade_to: The cheaper preset or model, for `degrade`.

        Raises:
            InvalidInput: There is no amount, or a value cannot be used.
        """
        given = {
            "usd": usd,
            "tokens": tokens,
            "steps": steps,
            "on_exhausted": on_exhausted,
            "scope": scope,
            "degrade_to": degrade_to,
        }
        self._budgets |= {budget.key: budget for budget in parse_budgets(given, "with_budget")}
        return self

    def with_last_turn_without_tools(self, flag: bool = True) -> Self:
        """Set whether the model has to answer in the last step that `with_max_steps` allows.

        It is told so and cannot call tools in that step, so that the user gets an answer.
        """
        self._last_turn_without_tools = require_type("with_last_turn_without_tools", flag, bool)
        return self

    def with_profile(self, profile: Literal["regular", "burst"]) -> Self:
        """Set where model calls of durable executions are run.

        Args:
            profile: `regular` runs each call as an activity of its own. `burst` runs it in the worker that
                runs the workflow, which costs much less, and moves a call that takes longer than half a
                second to an activity: for small and local models. The guarantees are the same.

        Raises:
            InvalidInput: There is no such profile.
        """
        self._profile = Profile.parse(profile, "with_profile")
        return self

    def with_repeated_call_limit(self, calls: int) -> Self:
        """Stop once the same tool was called this often in a row with the same arguments and the same result.

        After two thirds of these calls the model reads that it repeats itself.

        Raises:
            InvalidInput: The number is below 1.
        """
        if require_count("with_repeated_call_limit", calls) == 0:
            raise InvalidInput("with_repeated_call_limit was given 0; pass 1 or more")
        self._repeated_calls = calls
        return self

    def with_timeout(self, seconds: float) -> Self:
        """Start no further step this long after the start or the last resume.

        A cumulative timeout replaces this one.
        """
        self._timeout = ExecutionTimeLimit(require_seconds("with_timeout", seconds)).max_seconds
        return self

    def with_cumulative_timeout(
        self, seconds: float, scope: Literal["execution", "session"] = "execution"
    ) -> Self:
        """Start no further step after this many seconds of work; replaces the wall-clock timeout.

        Args:
            seconds: The working time. Time spent waiting for people does not count.
            scope: Whether the limit applies to one execution, or to all executions of a session together.
        """
        limit = CumulativeExecutionTimeLimit(require_seconds("with_cumulative_timeout", seconds), scope)
        self._cumulative = CumulativeTimeout(seconds=limit.max_seconds, scope=scope)
        return self

    def with_max_retries(self, attempts: int) -> Self:
        """Limit the attempts of a model call, the first one included.

        Without this limit only the retry budget ends the attempts.

        Args:
            attempts: The number of attempts; anything below 1 counts as 1.
        """
        self._model_attempts = max(1, require_whole("with_max_retries", attempts))
        return self

    def with_retry_budget(self, seconds: float) -> Self:
        """Limit how long a model call that fails in transport is retried.

        Without this limit the preset's `retry_seconds` applies, or else five minutes (30 seconds in-process).

        Args:
            seconds: The time from the first failure; 0 disables retries.

        Raises:
            InvalidInput: The number is negative.
        """
        if require_seconds("with_retry_budget", seconds) < 0:
            raise InvalidInput(f"with_retry_budget was given {seconds!r}; pass 0 or more seconds")
        self._retry_seconds = float(seconds)
        return self

    def with_compaction(
        self,
        enabled: bool = True,
        *,
        at: float = DEFAULT_COMPACTION.at,
        to: float = DEFAULT_COMPACTION.to,
        model: str | Mapping[str, Any] | None = None,
    ) -> Self:
        """Set how requests are kept within the context window of the model, where that is known.

        Old results of tools are cut first; if that is not enough, a model summarizes old messages. The
        conversation itself stays whole.

        Args:
            enabled: False switches it off.
            at: The share of what fits into a request above which it is compacted.
            to: The share that it has afterwards.
            model: The preset or the model that writes summaries; by default the agent's own.

        Raises:
            InvalidInput: A share is not between 0 and 1, or `to` is not smaller than `at`.
        """
        require_type("with_compaction", enabled, bool)
        try:
            policy = CompactionPolicy(at=at, to=to, model=model)
        except ValidationError as error:
            raise InvalidInput(f"with_compaction: {faults(error)}") from None
        self._compaction = policy if enabled else None
        return self

    def with_error_policy(self, policy: ErrorPolicy) -> Self:
        """Set the policy that decides whether a failure ends the execution."""
        self._error_policy = require_type("with_error_policy", policy, ErrorPolicy)
        return self

    def with_finish_reasons(self, *reasons: str) -> Self:
        """Start no further step after the model stopped for one of these reasons."""
        self._finish_reasons = tuple(valid_text(reason, "a finish reason") for reason in reasons)
        return self
