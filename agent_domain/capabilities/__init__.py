"""Capabilities, as far as they decide and say something: policies, rules and texts.

Whatever touches the world (runs a command, opens a file, asks a model or a person) comes
elsewhere and is told here what it may do and how to report it. Two words recur:

- an *error text* is a successful result that reports a problem: the functions return it;
- a *failure* is a failed call: the functions raise `InvalidInput` with its message.
"""
