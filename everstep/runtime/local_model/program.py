"""The process that serves the local model: llama.cpp's server, on the loopback interface.

It reads its order from standard input, writes its address to standard output once it answers, and ends when
standard input does: when the process that started it closes it, or ends in any way.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """What the process serves."""

    weights: str
    context_window: int
    key: str
    threads: int


def main() -> None:
    """Serve until standard input ends."""
    # The extra `local-model`, which has no type hints.
    llama: Any = import_module("xllamacpp")
    # Ctrl-C of a terminal reaches the whole group; the process that started this one decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = ServerOrder(**json.loads(sys.stdin.readline()))
    # Whatever llama.cpp writes must not be mixed with the address.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    params = llama.CommonParams()
    params.model.path = order.weights
    params.model_alias = {"local"}
    params.n_ctx = order.context_window
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order.threads
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [order.key]
    params.endpoint_slots = False
    params.warmup = False
    server = llama.Server(params)
    with answer:
        json.dump({"url": f"{server.listening_address}/v1"}, answer)
    sys.stdin.read()
    # Its threads have nothing to finish.
    os._exit(0)


if __name__ == "__main__":
    main()
