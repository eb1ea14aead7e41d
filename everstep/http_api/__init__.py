"""Answers HTTP: starts, reads, steers and cancels executions for applications and browsers.

A route checks who asks and what was sent, calls one use case through a port and renders the answer; it
decides nothing about agents and knows no tables.

May import ``workflows`` (to start and signal them), ``activities`` and ``agent_domain``; never the gateway.
"""
