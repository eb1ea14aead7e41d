"""Validation of contexts of sessions and messages: allowed types, URLs and the application's policy."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, cast

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.storage.contexts import ContextCaller, ContextPolicy, MessageContext, canonical_url
from everstep.agent_domain.storage.sessions import ContextForbidden
from everstep.agent_domain.stream.session_messages import Context

logger = logging.getLogger(__name__)

POLICY_SECONDS = 5.0
"""The time limit of a policy in seconds."""


class ContextPolicyFailed(EverstepError):
    """The policy raised an unexpected exception, which is the cause."""


class ContextPolicySlow(EverstepError):
    """The policy did not answer in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the context policy did not answer within {seconds:g} s")


class _PolicyLoop:
    """An event loop in a separate thread, so that a blocking policy does not block other requests.

    All calls use the same loop, because connections of the policy belong to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(
        self, work: Coroutine[Any, Any, MessageContext | Exception]
    ) -> Future[MessageContext | Exception]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="context policy", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


@dataclass(frozen=True)
class ContextRules:
    """Checks the context of a session or a message. Without types and a policy, only URLs are allowed."""

    types: frozenset[str] = frozenset()
    """The allowed related types."""
    policy: ContextPolicy | None = None
    seconds: float = POLICY_SECONDS
    _policy_loop: _PolicyLoop = field(default_factory=_PolicyLoop, init=False, repr=False, compare=False)

    async def check(
        self, context: Context, caller: ContextCaller, initial_context_url: str | None = None
    ) -> tuple[Context, str | None]:
        """Check types and URLs, then call the policy, and check the context that it returns.

        Returns:
            The context, and the initial URL of a session that starts with it.

        Raises:
            InvalidInput: The context is invalid.
            ContextForbidden: The caller may not use it.
            ContextPolicyFailed: The policy raised another exception.
            ContextPolicySlow: The policy did not answer in time.
        """
        checked_context = self._check_builtin(
            MessageContext(context.related_type, context.related_id, context.url, initial_context_url)
        )
        if self.policy is not None and checked_context != MessageContext():
            checked_context = self._check_builtin(
                await self._call_policy(self.policy, checked_context, caller)
            )
        about = Context(checked_context.related_type, checked_context.related_id, checked_context.context_url)
        return about, checked_context.initial_context_url

    def _check_builtin(self, context: MessageContext) -> MessageContext:
        # The constructor checks the lengths.
        about = Context(context.related_type, context.related_id, context.context_url)
        if about.related_type is not None and about.related_type not in self.types:
            allowed = f"choose from: {', '.join(sorted(self.types))}" if self.types else "none is configured"
            raise InvalidInput(f"related_type '{about.related_type}' is not allowed; {allowed}")
        urls = {
            name: canonical_url(url, name)
            for name in ("context_url", "initial_context_url")
            if (url := getattr(context, name)) is not None
        }
        return replace(context, related_id=about.related_id, **urls)

    async def _call_policy(
        self, policy: ContextPolicy, context: MessageContext, caller: ContextCaller
    ) -> MessageContext:
        try:
            async with asyncio.timeout(self.seconds):
                answer = await asyncio.wrap_future(
                    self._policy_loop.submit(_policy_outcome(policy, context, caller))
                )
        except TimeoutError:
            raise ContextPolicySlow(self.seconds) from None
        if isinstance(answer, InvalidInput | ContextForbidden):
            raise answer
        if isinstance(answer, Exception):
            raise ContextPolicyFailed("the context policy raised, see the cause") from answer
        return answer


async def _policy_outcome(
    policy: ContextPolicy, context: MessageContext, caller: ContextCaller
) -> MessageContext | Exception:
    """The result or the exception of the policy; an exception must not propagate into its event loop."""
    try:
        answer = await policy.check(context, caller)
    except Exception as error:  # noqa: BLE001 -- handed over to the caller
        return error
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise
        failure = RuntimeError(f"it raised {type(error).__name__}")
        failure.__cause__ = error
        return failure
    # User code: its annotations may be wrong.
    if not isinstance(cast("object", answer), MessageContext):
        return TypeError(
            f"it returned {type(answer).__name__}; return the context, or what replace() makes of it"
        )
    return answer
