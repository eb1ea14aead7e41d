"""Schemas of the API: bodies of requests, and responses."""
