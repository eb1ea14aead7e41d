"""Tools, their calls and their results."""
