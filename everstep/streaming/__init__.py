"""Watching agents at work from another process, over the gateway.

Imports the domain only: whoever watches needs no database, no Temporal and no gateway of its own.
"""
