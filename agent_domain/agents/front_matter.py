"""Front matter: the metadata of a markdown text, between two lines `---`.

    ---
    name: reviewer
    tools: bash, read_file
    ---
    You review changes.

This module only splits the text. Parsing the front matter as YAML needs a library and is left to
the caller. `parse_names` parses lists of names, which may be a YAML list or comma-separated text.
"""

import re
from collections.abc import Iterable
from typing import cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import valid_text

_BYTE_ORDER_MARK = "\ufeff"

_FRONT_MATTER = re.compile(
    r"\s*^---[ \t]*\n"  # the opening line, after blank lines at most
    r"(.*?)"
    r"^---[ \t]*(?:\n|\Z)"
    r"(.*)",
    re.DOTALL | re.MULTILINE,
)


def split_front_matter(text: str) -> tuple[str | None, str]:
    r"""Split a text into front matter and body.

    Lines may end in `\r\n`, which becomes `\n`, and a fence may have trailing spaces.

    Returns:
        The front matter and the body; None and the whole text if the text does not begin with front matter
        or does not close it.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n")
    fenced = _FRONT_MATTER.match(text)
    return (fenced[1], fenced[2]) if fenced else (None, text)


def parse_names(value: object, field: str) -> tuple[str, ...]:
    """The names in a list or in comma-separated text: trimmed, without blanks and duplicates.

    Args:
        value: The list or text.
        field: The name of the field, for error messages.
    """
    entries: object = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        kind = type(value).__name__
        raise InvalidInput(f"'{field}' must be a list of names or names between commas, not {kind}")
    given = cast("Iterable[object]", entries)
    names = [valid_text(entry, f"each name in '{field}'").strip() for entry in given]
    return tuple(dict.fromkeys(name for name in names if name))
