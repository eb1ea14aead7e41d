"""Loading of the application's context policy, which a setting names."""

import inspect
from typing import Any, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.contexts import ContextPolicy
from everstep.agent_domain.values import truncate
from everstep.runtime.agents import import_attribute


def load_context_policy(where: str) -> ContextPolicy:
    """Load the policy at `module:attribute`: an object, or a class without arguments.

    Raises:
        InvalidInput: There is no such policy; the message says what to change.
    """
    module_name, colon, attribute = where.partition(":")
    if not (module_name and colon and attribute):
        raise InvalidInput(
            f"context_policy is '{truncate(where, 100)}'; write module:attribute, such as "
            "my_app.contexts:Policy"
        )
    try:
        found = import_attribute(module_name, attribute, where)
        policy: Any = found() if inspect.isclass(found) else found
    except InvalidInput as error:
        raise InvalidInput(f"context_policy cannot be used: {error}") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"context_policy '{where}' cannot be created: {truncate(said, 300)}") from error
    if not _is_policy(policy):
        raise InvalidInput(
            f"context_policy '{where}' is not a policy; it needs `async def check(self, context, caller)`"
        )
    return cast("ContextPolicy", policy)


def _is_policy(policy: Any) -> bool:
    check = getattr(policy, "check", None)
    if not inspect.iscoroutinefunction(check):
        return False
    try:
        inspect.signature(check).bind(None, None)
    except TypeError:
        return False
    return True
