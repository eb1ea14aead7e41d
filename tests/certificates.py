"""One TLS context for all HTTP clients of a process.

Each client loads the certificates of all authorities when it is made, also one that only calls `http://`.
That takes 20 ms, and tests make thousands of clients.
"""

from functools import cache

import httpcore2


def share_certificates() -> None:
    """Load the certificates when the first client is made, for all later ones."""
    httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)
