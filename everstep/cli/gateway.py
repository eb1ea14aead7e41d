"""The gateway's process."""

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
@click.option("--port", type=click.IntRange(0, 65535), help="6001, unless it is set; 0: a free one.")
@click.pass_obj
@partial(command, loop=uvloop.new_event_loop)
async def gateway(settings: Settings, port: int | None) -> None:
    """Let viewers watch until told to stop.

    Then they are sent elsewhere, one after the other. Start as many as you like. It waits for PostgreSQL, and
    says so; /readyz tells meanwhile.
    """
    log_requests()
    stop = stopped_by_signals("viewers are sent elsewhere")
    settings = located(settings.listening_on(gateway_port=port))
    front = gateway_port(settings)
    if not await servers_answer(settings, lambda: stop, told, front, needs_temporal=False):
        return
    async with gateway_of(settings, front.listener) as url:
        echo(f"viewers watch at {url}; Ctrl-C stops")
        # What is there now stays, and nothing that comes refers to itself: looking for it costs 50 ms a time.
        gc.collect()
        gc.freeze()
        gc.disable()
        await stop.wait()
