"""The commands about the builds of workers."""

import click

from everstep.agent_domain.values import format_moment
from everstep.cli.command import command, print_line
from everstep.cli.json_output import json_option, print_json
from everstep.cli.printing import echo
from everstep.runtime.installation import locate_services
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect
from everstep.runtime.worker_builds import list_builds, set_current_build


@click.group()
def builds() -> None:
    """Manage the builds of workers (EVERSTEP_BUILD_ID).

    Executions stay on the build on which they began. New ones begin on the current build.
    """


@builds.command("list")
@json_option
@click.pass_obj
@command
async def show_builds(settings: Settings, as_json: bool) -> None:
    """List the builds that Temporal knows, newest first.

    Stop the workers of a build when it is drained: until then its executions need them.
    """
    found = await list_builds(await connect(locate_services(settings)))
    for each in found:
        if as_json:
            created_at = format_moment(each.created_at, 6)
            print_json({"build_id": each.build_id, "status": each.status, "created_at": created_at})
        else:
            print_line(f"{each.status:<8}  {format_moment(each.created_at, 0)}  {each.build_id}")
    if not found and not as_json:
        echo(
            "No worker has a build id; `EVERSTEP_BUILD_ID=ID everstep worker` starts one that has.", err=True
        )


@builds.command("set-current")
@click.argument("build_id")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 86_400),
    default=0,
    metavar="SECONDS",
    help="How long to wait for workers of the build.",
)
@click.option(
    "--ignore-missing-task-queues",
    "ignores_missing_queues",
    is_flag=True,
    help="Even if the build lacks task queues of the current one.",
)
@click.pass_obj
@command
async def set_current(
    settings: Settings, build_id: str, wait_seconds: float, ignores_missing_queues: bool
) -> None:
    """Make a build current: new executions begin there.

    Workers of it have to run. Executions that run stay on their builds.
    """
    await set_current_build(
        await connect(locate_services(settings)),
        build_id,
        wait_seconds=wait_seconds,
        ignores_missing_queues=ignores_missing_queues,
    )
    print_line(f"new executions begin on the build '{build_id}'")
