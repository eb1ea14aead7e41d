"""How services start executions and deal with running ones: over Temporal and the store.

May import ``workflows`` (their contracts) and what lies below; never the packages that implement the
store: it is given one.
"""
