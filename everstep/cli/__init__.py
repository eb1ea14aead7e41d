"""Speaks with people at a terminal: the ``everstep`` command.

A command parses its arguments, calls ``everstep.runtime`` and prints.

May import everything, and nothing imports it.
"""
