"""Policies for contexts, as an application defines them."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from everstep import ContextCaller, ContextForbidden, InvalidInput, MessageContext

HIDDEN = "password=hunter2"


class Policy:
    """A policy that chooses its behaviour by the subject of the message."""

    async def check(  # noqa: C901 -- one case for each behaviour
        self, context: MessageContext, caller: ContextCaller
    ) -> MessageContext:
        match context.related_id:
            case "theirs":
                raise ContextForbidden(f"{caller.user_id} may not see this order")
            case "unknown":
                raise InvalidInput("there is no such order; check its number")
            case "wordless":
                raise InvalidInput
            case "broken":
                raise RuntimeError(HIDDEN)
            case "ends the process":
                raise SystemExit(3)
            case "hangs":
                await asyncio.Event().wait()
            case "blocks":
                time.sleep(6)  # noqa: ASYNC251 -- as a careless policy does
            case "nothing":
                return None  # type: ignore[return-value] -- as a careless policy does
            case "script":
                return replace(context, context_url="javascript:alert(1)")
            case "who":
                said = f"{caller.user_id} {caller.tenant_id} {sorted(caller.scopes)} {sorted(caller.roles)}"
                raise ContextForbidden(said)
            case "canonical":
                return replace(context, related_id="7", context_url="HTTPS://Shop.Example/./7")
            case _:
                return context
        return context


class Unmakeable:
    """A policy whose constructor needs arguments."""

    def __init__(self, url: str) -> None:
        self.url = url


class Blocking:
    """A policy that is not async."""

    def check(self, context: Any, caller: Any) -> Any:
        del caller
        return context


class Short:
    """A policy that takes too few arguments."""

    async def check(self, context: Any) -> Any:
        return context


policy = Policy()
blocking = Blocking()
short = Short()
number = 7
