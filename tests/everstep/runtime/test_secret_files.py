"""Secrets in files, as containers mount them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.main import commands
from everstep.runtime.secret_files import MAX_BYTES, read_secret_files
from everstep.runtime.settings import misspelled_variables


def a_file(folder: Path, content: bytes) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    "name",
    [
        "DATABASE_URL",
        "EVERSTEP_AUTH_SECRET",
        "EVERSTEP_BROADCAST_SECRET",
        "OPENAI_API_KEY",
        "TEMPORAL_API_KEY",
    ],
)
def test_a_secret_is_read_from_its_file(tmp_path: Path, name: str) -> None:
    """18.5.1"""
    environ = {f"{name}_FILE": a_file(tmp_path, b"  of-32-characters \n")}
    read_secret_files(environ)

    assert environ[name] == "of-32-characters"
    assert list(misspelled_variables(environ)) == []


def test_other_variables_are_left_alone(tmp_path: Path) -> None:
    """18.5.1: also those of other programs that name files."""
    given = {
        "SSL_CERT_FILE": a_file(tmp_path, b"x"),
        "EVERSTEP_AGENTS_FILE": "/nowhere",
        "OPENAI_API_KEY_FILE": "",
    }
    environ = dict(given)
    read_secret_files(environ)

    assert environ == given


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (b"\n", {}, "is empty"),
        (b"x" * (MAX_BYTES + 1), {}, "holds no secret"),
        (b"\xff\xfe", {}, "not text"),
        (b"key", {"OPENAI_API_KEY": "other"}, "are both set"),
        (None, {}, "No such file or directory"),
    ],
)
def test_a_file_without_a_secret_is_refused(
    tmp_path: Path, content: bytes | None, more: dict[str, str], words: str
) -> None:
    """18.5.1"""
    path = a_file(tmp_path, content) if content is not None else str(tmp_path / "none")
    with pytest.raises(InvalidInput, match=words):
        read_secret_files({"OPENAI_API_KEY_FILE": path, **more})


def test_a_command_says_which_file_it_cannot_read() -> None:
    """18.5.1"""
    given = {"EVERSTEP_AUTH_SECRET_FILE": "/nowhere/secret"}
    result = CliRunner().invoke(commands, ["agents"], env=given)

    assert result.exit_code == 1
    assert "EVERSTEP_AUTH_SECRET_FILE names '/nowhere/secret'" in result.output
