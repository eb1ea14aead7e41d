"""Durations in text, such as 1h30m."""

from durations.text import parse, render

__all__ = ["parse", "render"]
