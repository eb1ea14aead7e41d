"""What pydantic found wrong, in one line that a model or a user can act on."""

from pydantic import ValidationError


def faults(error: ValidationError) -> str:
    """Name each fault with its place; neither the input nor an address of a manual is repeated."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_place(detail['loc'])}{detail['msg']}" for detail in details)


def _place(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""
