"""What the command says of itself, at once."""

import json
import platform
import subprocess
import sys
from importlib.metadata import version

import click
from click.testing import CliRunner

from everstep.cli.main import PLACES, SECTIONS, commands

SLOW = {
    "pydantic",
    "temporalio",
    "sqlalchemy",
    "fastapi",
    "openai",
    "anthropic",
    "yaml",
    "asyncio",
    "rich",
    "jsonschema_rs",
}


def imported_by(code: str) -> set[str]:
    """The modules that a program of this code imports."""
    program = f"import sys\n{code}\nimport json\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run(  # noqa: S603 -- this test's own code
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_and_version_import_nothing_slow() -> None:
    """8.11.2"""
    modules = imported_by(
        "from everstep.cli.main import commands\n"
        "for arguments in (['--help'], ['-h'], [], ['--version'], ['rnu']):\n"
        "    try: commands(arguments)\n"
        "    except SystemExit: pass"
    )

    assert "everstep.cli.main" in modules
    assert not modules & SLOW


def test_the_package_itself_imports_nothing_slow() -> None:
    """8.11.2: its names are imported when they are used."""
    modules = imported_by("import everstep; dir(everstep)")

    assert not modules & SLOW
    assert {each for each in modules if each.startswith("everstep.")} == set()


def test_the_help_has_each_command_with_the_first_sentence_of_its_own_help() -> None:
    context = click.Context(commands)
    assert commands.list_commands(context) == sorted(PLACES)
    for section in SECTIONS.values():
        for name, (_, text) in section.items():
            command = commands.get_command(context, name)
            assert command is not None
            assert command.get_short_help_str(limit=200).startswith(text.rstrip(".")), name
            assert len(text) <= 66, f"{name} wraps in a terminal of 80 columns"


def test_the_version_names_what_a_report_of_an_error_needs() -> None:
    result = CliRunner().invoke(commands, ["--version"], prog_name="everstep")

    assert result.exit_code == 0
    expected = f"everstep {version('everstep')} (Python {platform.python_version()}, {platform.platform()})\n"
    assert result.output == expected


def test_a_command_about_an_execution_imports_no_provider_and_no_migrations() -> None:
    modules = imported_by("import everstep.cli.executions")

    assert "temporalio" in modules
    assert not modules & {"openai", "anthropic", "alembic", "mcp", "fastapi"}
