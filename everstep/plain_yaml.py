"""Safe YAML: plain values only, in bounded time.

Agent files and skills contain YAML from strangers. This module imports no other of ours, so any layer may use
it.
"""

from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

MAX_YAML: Final = 64 * 1024
"""Longer YAML is refused: PyYAML needs up to ten seconds for a megabyte."""


def load_yaml(text: str) -> object:
    """Parse a YAML text.

    Raises:
        ValueError: It is invalid, uses aliases or has a key twice.
    """
    if len(text) > MAX_YAML:
        raise ValueError(f"it is longer than {MAX_YAML} characters; shorten it")
    try:
        loader = _PlainLoader(text)
        return loader.get_single_data()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, yaml.YAMLError) as error:
        # In addition to its own errors, PyYAML raises Python's conversion errors for an explicit tag with a
        # wrong value, such as `!!int ""`.
        raise ValueError(str(error) or type(error).__name__) from error


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases and duplicate keys.

    Nine aliases in nine lines can expand to a billion values. PyYAML silently takes the last of duplicate
    keys, so a `tools: []` at the top of a file could be overridden by another `tools` further down.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(problem="aliases are not supported; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise ConstructorError(
                    problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
