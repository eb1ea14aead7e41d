"""One process of a worker, from its start until it is stopped."""

import asyncio
import logging
from collections.abc import Callable

from everstep.runtime.installation import locate_services, open_installation
from everstep.runtime.models import demo_warning
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import open_telemetry
from everstep.runtime.temporal_threads import export_sdk_metrics
from everstep.runtime.waiting import wait_for_servers
from everstep.runtime.worker import build_failpoint
from everstep.runtime.worker_port import open_worker_port, worker_port

logger = logging.getLogger(__name__)

Say = Callable[[str], object]


async def run_worker(settings: Settings, stop: Callable[[], asyncio.Event], warn: Say, say: Say) -> None:
    """Wait for PostgreSQL and Temporal, and run agents until the stop event.

    Args:
        settings: The settings.
        stop: Called once signals have to stop the worker, and not the program; returns the event.
        warn: Called with what is waited for.
        say: Called once the worker works.
    """
    settings = locate_services(settings)
    with open_telemetry(settings, "worker"):
        port = worker_port(settings)
        if port:
            export_sdk_metrics()
        if not await wait_for_servers(settings, stop, warn, port):
            return
        async with open_installation(settings, "everstep worker", is_linked=True) as installation:
            if warning := demo_warning(settings, installation.book.agents):
                logger.warning(warning)
            names, strike = ", ".join(installation.book.names), build_failpoint(settings.failpoint)
            # Install the signal handlers before the line is printed: a reader may then send a signal.
            stopped = stop()
            async with installation.open_worker(strike) as work, open_worker_port(installation, port) as url:
                if url:
                    say(f"metrics at {url}/metrics")
                say(f"working on '{installation.settings.task_queue}' for the agents {names}; Ctrl-C stops")
                await work(stopped)
