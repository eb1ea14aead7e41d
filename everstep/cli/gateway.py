"""The command that runs a gateway."""

import gc

import click

from everstep.cli.command import announce, server_command, stop_on_signals, warn
from everstep.runtime.gateway import gateway_port, open_gateway_process
from everstep.runtime.installation import locate_services
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import open_telemetry
from everstep.runtime.waiting import wait_for_servers


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Default: EVERSTEP_GATEWAY_PORT or 6001; 0: a free one."
)
@click.pass_obj
@server_command
async def gateway(settings: Settings, port: int | None) -> None:
    """Serve events and live text to browsers until stopped by SIGINT or SIGTERM.

    The gateway then asks its viewers, one after the other, to reconnect to another gateway. Any number of
    gateways can run. It waits until PostgreSQL is available; /readyz reports the state while it waits.
    """
    click.get_current_context().with_resource(open_telemetry(settings, "gateway"))
    stop = stop_on_signals("viewers are asked to reconnect")
    settings = locate_services(settings.with_ports(gateway_port=port))
    listening = gateway_port(settings)
    if not await wait_for_servers(settings, lambda: stop, warn, listening, needs_temporal=False):
        return
    async with open_gateway_process(settings, listening.listener) as url:
        announce(f"viewers watch at {url}; Ctrl-C stops")
        # All objects so far stay, and later ones form no cycles: each collection would waste 50 ms.
        gc.collect()
        gc.freeze()
        gc.disable()
        await stop.wait()
