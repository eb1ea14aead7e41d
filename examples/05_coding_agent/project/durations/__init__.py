"""Durations as people write them."""

from durations.text import parse, written

__all__ = ["parse", "written"]
