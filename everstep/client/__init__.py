"""The client for services: starts executions and controls running ones, with Temporal and the store.

May import ``workflows`` (their contracts) and the layers below; never the packages that implement the store,
which is passed in.
"""
