"""The command that runs a gateway."""

import gc
from functools import partial

import click
import uvloop

from everstep.cli.command import command, stopped_by_signals, told
from everstep.cli.printing import echo
from everstep.runtime.api import log_requests
from everstep.runtime.gateway import gateway_of, gateway_port
from everstep.runtime.installation import located
from everstep.runtime.settings import Settings
from everstep.runtime.waiting import servers_answer


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Default: EVERSTEP_GATEWAY_PORT or 6001; 0: a free one."
)
@click.pass_obj
@partial(command, loop=uvloop.new_event_loop)
async def gateway(settings: Settings, port: int | None) -> None:
    """Serve viewers until stopped by SIGINT or SIGTERM.

    The gateway then asks its viewers, one after the other, to reconnect to another gateway. Any number of
    gateways can run. It waits until PostgreSQL is available; /readyz reports the state while it waits.
    """
    log_requests()
    stop = stopped_by_signals("viewers are asked to reconnect")
    settings = located(settings.listening_on(gateway_port=port))
    front = gateway_port(settings)
    if not await servers_answer(settings, lambda: stop, told, front, needs_temporal=False):
        return
    async with gateway_of(settings, front.listener) as url:
        echo(f"viewers watch at {url}; Ctrl-C stops")
        # All objects so far stay, and later ones form no cycles: each collection would waste 50 ms.
        gc.collect()
        gc.freeze()
        gc.disable()
        await stop.wait()
