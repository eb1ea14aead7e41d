"""Files on the command line: sent with a message, listed and saved."""

from pathlib import Path

import pytest

from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_files_are_sent_listed_and_saved(desk: CommandLine, tmp_path: Path) -> None:
    """5.6.1"""
    notes, photo = tmp_path / "notes.md", tmp_path / "photo.png"
    notes.write_text("# Notes")
    photo.write_bytes(b"\x89PNG\r\n\x1a\nrest")
    files = ("--attach", notes, "--attach", photo)
    execution = (await desk.output_of("run", "--detach", "Look", *files)).strip()

    listed = await desk.output_of("files", execution, "--save", tmp_path / "saved")

    assert "notes.md (text/markdown, 7 bytes)  sent" in listed
    assert "photo.png (image/png, 12 bytes)  sent" in listed
    assert (tmp_path / "saved" / "notes.md").read_text() == "# Notes"
    assert (tmp_path / "saved" / "photo.png").read_bytes() == photo.read_bytes()
    said = await desk.run_command("files", execution, "--save", tmp_path / "saved")
    assert said.exit_code == 1
    assert "exists already; save to another folder" in said.stderr
    without = (await desk.output_of("run", "--detach", "Look")).strip()
    assert (await desk.run_command("files", without)).stderr == "The execution has no files.\n"


async def test_what_cannot_be_attached_is_refused(desk: CommandLine, tmp_path: Path) -> None:
    """5.6.2"""
    for name, data, words in [
        ("empty.txt", b"", "the file 'empty.txt' is empty"),
        ("photo.png", b"hello", "is text/plain, although its name ends in .png"),
        ("tool.exe", b"MZ\x90\x00", "files of the type application/x-executable are not accepted"),
    ]:
        (tmp_path / name).write_bytes(data)
        assert words in await desk.error_of("run", "Look", "--attach", tmp_path / name)
    missing = await desk.error_of("run", "Look", "--attach", tmp_path / "missing.png")
    assert "cannot be read: No such file or directory" in missing
    (tmp_path / "a.txt").write_text("hello")
    wrong = await desk.error_of("run", "Look", "--attach", tmp_path / "a.txt", EVERSTEP_ATTACHMENTS="files")
    assert "use postgres, the absolute path of a folder" in wrong
