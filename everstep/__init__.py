"""Everstep: durable AI agents.

The public API: everything that a program needs to build agents and to run them in its own process. The names
are in `__init__.pyi`, for type checkers and for this module: each is loaded on first use, so that importing
`everstep` costs next to nothing.
"""

import ast
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any


def _public_names() -> dict[str, str]:
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULE_OF = _public_names()
__all__ = list(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll] -- the stub says what they are


_FORMER_NAMES = {"LoopState": "ExecutionFacts"}
"""Names that a later release drops, and the present ones."""


def __getattr__(name: str) -> Any:
    if name in _FORMER_NAMES:
        present = _FORMER_NAMES[name]
        warnings.warn(f"write everstep.{present}, not {name}", DeprecationWarning, stacklevel=2)
        name = present
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'everstep' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
