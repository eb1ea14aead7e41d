"""The ``everstep`` command, for use at a terminal.

A command parses its arguments, calls ``everstep.runtime`` and prints.

May import everything, and nothing imports it.
"""
