"""The known name that an unknown one was probably meant to be, for error messages.

Every text that refuses a name ends with `did_you_mean`, so that all of them read alike:

    No agent named 'asistant'. Choose from: assistant, clerk; did you mean 'assistant'?

Case, hyphens, underscores, dots and spaces do not count: `HTTP-Port` is near `http_port`.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_LENGTH: Final = 100
"""Longer names are not compared: it takes quadratic time, and the name may be the text of a model."""

MIN_PREFIX: Final = 3
"""The fewest characters that are taken for the beginning of a name."""

CUTOFF: Final = 0.65
"""The least similarity, as in `difflib`: one wrong letter of three, two of six."""

_IGNORED = str.maketrans("", "", "-_. ")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, or None if no name is near.

    A name is near if it differs in few letters, or if it is the only one that begins like the unknown one.
    """
    if len(name) > MAX_LENGTH:
        return None
    wanted = _bare(name)
    by_bare: dict[str, str] = {}
    for each in known:
        if len(each) <= MAX_LENGTH:
            by_bare.setdefault(_bare(each), each)
    if close := get_close_matches(wanted, by_bare, n=1, cutoff=CUTOFF):
        return by_bare[close[0]]
    longer = [bare for bare in by_bare if bare.startswith(wanted)] if len(wanted) >= MIN_PREFIX else []
    return by_bare[longer[0]] if len(longer) == 1 else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message, `; did you mean '{name}'?`, or an empty text if no name is near."""
    near = nearest(name, known)
    return "" if near is None else f"; did you mean '{near}'?"


def _bare(name: str) -> str:
    return name.casefold().translate(_IGNORED)
