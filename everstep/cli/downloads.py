"""The command that lists and saves the files of an execution."""

from pathlib import Path

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.cli.command import command, print_line, warn
from everstep.cli.executions import with_execution
from everstep.cli.json_output import json_option, print_json
from everstep.client.execution import Execution
from everstep.http_api.schemas.attachment_responses import ExecutionFile
from everstep.runtime.installation import Installation
from everstep.runtime.settings import Settings


@click.command()
@click.argument("execution_id")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FOLDER", help="Write the files to a folder."
)
@json_option
@click.pass_obj
@command
async def files(settings: Settings, execution_id: str, save: Path | None, as_json: bool) -> None:
    """List the files of an execution, or save them to a folder.

    These are the files of its messages, and those that its tools returned.
    """

    async def list_files(installation: Installation, execution: Execution) -> None:
        row = await execution.get()
        uses = await installation.attachments.list_uses(row.ref)
        for use in uses:
            source = f"returned by {use.call_id}" if use.call_id else "sent"
            if as_json:
                print_json(ExecutionFile.from_use(use))
            else:
                print_line(f"{use.attachment.id}  {use.attachment}  {source}")
            if save is not None:
                scope = Scope(row.ref.tenant_id)
                attachment, data = await installation.attachments.open(scope, use.attachment.id)
                _save(save, attachment.name, data)
        if not uses:
            warn("The execution has no files.")

    await with_execution(settings, execution_id, list_files)


def _save(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise InvalidInput(f"'{path}' exists already; save to another folder") from None
    except OSError as error:
        raise InvalidInput(f"'{path}' cannot be written: {error.strerror or type(error).__name__}") from None
    warn(f"saved {path}")
