"""The pure part of capabilities: policies, rules and texts.

Code with side effects (running a command, opening a file, asking a model or a person) is
elsewhere. It uses these modules to decide what is allowed and how to report results. Two terms
recur:

- an *error text* is a successful result that reports a problem: the functions return it;
- a *failure* is a failed call: the functions raise `InvalidInput` with its message.
"""
