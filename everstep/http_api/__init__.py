"""Answers HTTP: sessions, executions and the people who answer them, for applications and browsers.

A route checks who asks and what was sent, calls one use case and renders the answer; it decides nothing
about agents and knows no tables.

May import ``everstep.client`` and what lies below; never the packages that implement the store: it is
given one. It does not know the gateway.
"""
