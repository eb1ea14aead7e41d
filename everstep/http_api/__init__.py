"""The HTTP API: sessions, executions and their open requests, for applications and browsers.

A route authenticates the caller, validates the request, calls one use case and renders the response. It
makes no decisions about agents and knows no tables.

May import ``everstep.client`` and the layers below it; never the packages that implement the store, which is
passed in. It does not know the gateway.
"""
