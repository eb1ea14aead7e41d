"""Decisions about calls, as a person types them."""

from typing import Any, Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import frozen_map, parse_json, thaw, valid_text

HOW_TO_DECIDE: Final = "[a]pprove, [d]eny (reason), [e]dit JSON"


def parse_decision(text: str) -> dict[str, Any]:
    """The decision about a call, as the API expects it.

    Raises:
        InvalidInput: The line is not a decision.
    """
    word, _, rest = text.strip().partition(" ")
    rest = valid_text(rest.strip(), "the line")
    match word.lower():
        case "a" | "approve" if not rest:
            return {"decision": "approve"}
        case "d" | "deny":
            return {"decision": "deny", "reason": rest or None}
        case "e" | "edit" if rest:
            args = frozen_map(parse_json(rest, "what follows"), "what follows")
            return {"decision": "edit", "args": thaw(args)}
        case _:
            raise InvalidInput("type a, or d and an optional reason, or e and all arguments as JSON")
