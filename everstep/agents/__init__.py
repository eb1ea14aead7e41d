"""Agents defined in files: where the files lie, how they are read, and which of two wins.

The domain parses texts that it is given; here is the file system. May import
`agent_domain`, and none of its sibling packages.
"""
