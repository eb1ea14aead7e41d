"""What pydantic found wrong, in one line that a model or a user can act on."""

from pydantic import ValidationError

MAX_TOLD = 10
"""How many faults are told of: enough to mend an answer, and not a page."""


def faults(error: ValidationError) -> str:
    """Name each fault with its place; neither the input nor an address of a manual is repeated."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{_place(detail['loc'])}{detail['msg']}" for detail in details[:MAX_TOLD]]
    more = [f"and {len(details) - MAX_TOLD} more"] if len(details) > MAX_TOLD else []
    return "; ".join([*told, *more])


def _place(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""
