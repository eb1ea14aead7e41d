"""Streams of envelopes between processes: publishing them to gateways, and following one over a gateway.

Imports the domain only: a program that follows a stream needs no database, no Temporal and no gateway.
"""
