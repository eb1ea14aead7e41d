"""Marks: small values that processors and hooks set, and that criteria read.

Criteria of durable executions see facts and no texts. Code that sees the texts, such as a critic, sets a
mark: a name and a small JSON value, which is one of the facts. Marks belong to one execution; the next one
begins without any.
"""

from collections.abc import Mapping
from typing import Any, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, json_text, valid_text

MAX_MARKS = 2_000
"""The maximum length of all marks of an execution as JSON, in characters: workflow history contains them."""


def changed_marks(marks: FrozenDict, changes: Mapping[str, Any]) -> FrozenDict:
    """The marks after these changes; None removes a mark."""
    return FrozenDict({name: value for name, value in {**marks, **changes}.items() if value is not None})


def mark_changes(before: FrozenDict, after: FrozenDict) -> FrozenDict:
    """The changes from one set of marks to another; None for a mark that was removed."""
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return FrozenDict({**changed, **{name: None for name in before if name not in after}})


def with_mark(marks: FrozenDict, name: str, value: object) -> FrozenDict:
    """The marks with one of them set, or removed by None.

    Raises:
        InvalidInput: The name is no text, the value is not JSON, or the marks are too long.
    """
    name = valid_text(name, "the name of a mark")
    marks = changed_marks(marks, frozen_map({name: value}, "the marks"))
    if (size := len(json_text(marks))) > MAX_MARKS:
        raise InvalidInput(
            f"with '{name}' the marks have {size} characters of JSON, more than {MAX_MARKS}; keep numbers "
            "and short names in marks, and texts in the metadata"
        )
    return marks


def former_marks(recorded: object) -> FrozenDict:
    """The marks in facts and results that were recorded when the critique was a field of its own."""
    fields = cast("Mapping[str, Any]", recorded) if isinstance(recorded, Mapping) else EMPTY
    critique = fields.get("critique")
    return frozen_map({"critique": critique}) if critique else EMPTY
