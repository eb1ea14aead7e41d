"""Texts of options that several commands have; this module imports nothing that takes time."""

from typing import Final

SOURCE: Final = "DIR|FILE|MODULE:ATTRIBUTE"
AGENTS_HELP: Final = "Where to find your agents; may be repeated."
