"""Agents defined in files: where the files are, how they are read, and which of two with one name is used.

The domain parses texts; this package reads the file system. May import `agent_domain`, and none of its
sibling packages.
"""
