"""Streams of envelopes between processes: publishing them to gateways, and following one over a gateway.

Imports only the domain and metrics: a program that follows a stream needs no database, Temporal or gateway.
"""
