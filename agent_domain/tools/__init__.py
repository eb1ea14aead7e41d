"""Tools: what one is, what a call of it is, and what it returns."""
