"""Short summaries of arguments and results, for viewers of an execution."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from everstep.agent_domain.tools.tools import result_text
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, truncate

SHOWN_ARGS = 3
MAX_ARG = 30
MAX_RESULT = 100
_MORE = "..."


def args_summary(args: Mapping[str, Any]) -> str:
    """The first arguments with their values, each cut to a maximum length."""
    shown = islice(frozen_map(args, "the arguments").items(), SHOWN_ARGS)
    return ", ".join(f"{key}: {_shorten(_value_text(value), MAX_ARG)}" for key, value in shown)


def _value_text(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json_text(value)


def cut_args(args: Mapping[str, Any], max_length: int) -> FrozenDict:
    """Cut the texts at the top level of the arguments to a length, and change nothing else."""
    given = frozen_map(args, "the arguments").items()
    return FrozenDict({k: truncate(v, max_length) if isinstance(v, str) else v for k, v in given})


def result_summary(result: object) -> str | None:
    """The beginning of a result, or None without a result."""
    return None if result is None else _shorten(result_text(result), MAX_RESULT)


def _shorten(text: str, length: int) -> str:
    """Cut a text to `length` characters, including the `...` for the removed part."""
    return text if len(text) <= length else text[: length - len(_MORE)] + _MORE
