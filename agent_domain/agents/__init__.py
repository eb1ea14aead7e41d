"""Agents: how one is built, defined and registered, and how it talks to a model."""
