"""Paths in the base directory that file tools refuse like `..`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.protection import protect
from tests.everstep.capabilities.files.ground import OUTSIDE, FileTree


@pytest.fixture(autouse=True)
def installation(ground: FileTree) -> Iterator[None]:
    """An installation with its data and agents in the base directory."""
    for name, text in {
        ".everstep/api-secret": "key",
        ".everstep/postgres/postgresql.auto.conf": "",
        ".env": "key",
        ".envrc": "key",
        "sub/.env.local": "key",
        ".git/config": "[core]",
        ".git/HEAD": "ref: refs/heads/main",
        ".git/hooks/a.sample": "",
        "agents/a.md": "agent",
        "everstep.toml": "preset = 'x'",
        "nested/everstep.toml": "preset = 'x'",
        "nested/.everstep/temporal.db": "key",
        "store/HEAD": "ref",
        "store/objects/x": "",
        "store/refs/x": "",
        "half/HEAD": "ref",
        "half/objects/x": "",
    }.items():
        path = ground.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    protect([ground.base / ".everstep"], [ground.base / "agents"])
    yield
    protect()


UNREADABLE = [
    ".everstep/api-secret",
    ".everstep/none",
    ".everstep",
    "nested/.everstep/temporal.db",
    ".env",
    ".envrc",
    ".ENV.local",
    "sub/.env.local",
    "sub/../.env",
    "./.env",
]
READ_ONLY = [
    *UNREADABLE,
    ".everstep/postgres/postgresql.auto.conf",
    ".everstep/agents/x.md",
    "everstep.toml",
    "Everstep.TOML",
    "sub/everstep.toml",
    "nested/everstep.toml",
    ".claude/agents/x.md",
    "sub/.claude/settings.json",
    "agents/a.md",
    "agents/new/b.md",
    ".git",
    ".git/config",
    ".git/hooks/pre-commit",
    ".git/info/attributes",
    ".git/index",
    "sub/.git",
    "sub/.git/config",
    ".GIT/config",
    "store/config",
    "store/hooks/post-update",
    "half/refs/heads/x",
    "half/commondir",
    "new/.env",
]


@pytest.mark.parametrize("path", UNREADABLE)
def test_secrets_are_not_read(path: str, ground: FileTree) -> None:
    """9.2.10: neither data of an installation nor files that begin with `.env`."""
    assert ground.read(path) == OUTSIDE
    assert ground.call("list_dir", path=path) == OUTSIDE
    assert ground.read(str(ground.base / path)) == OUTSIDE


@pytest.mark.parametrize("path", READ_ONLY)
def test_files_that_run_code_or_hold_secrets_are_not_written(path: str, ground: FileTree) -> None:
    """9.2.10: and no parent folder is created."""
    before = {each: each.read_text() for each in ground.base.rglob("*") if each.is_file()}
    folders = {each for each in ground.base.rglob("*") if each.is_dir()}
    assert ground.write(path) == OUTSIDE
    assert ground.write(str(ground.base / path)) == OUTSIDE
    assert ground.edit(path, "a", "b") == OUTSIDE
    assert {each: each.read_text() for each in ground.base.rglob("*") if each.is_file()} == before
    assert {each for each in ground.base.rglob("*") if each.is_dir()} == folders


def test_links_do_not_bypass_the_protection(ground: FileTree) -> None:
    """9.2.10: the target of a path decides."""
    ground.link("secret", ".env")
    ground.link("data", ".everstep")
    ground.link("git", ground.base / ".git")
    ground.link("code", "git/hooks")
    for path in ("secret", "data/api-secret", "sub/../data/api-secret"):
        assert ground.read(path) == OUTSIDE
    for path in ("secret", "data/x", "git/config", "code/pre-commit", "code/new/x"):
        assert ground.write(path) == OUTSIDE
    assert not (ground.base / ".git/hooks/new").exists()


def test_settings_and_definitions_are_read(ground: FileTree) -> None:
    """9.2.10: an agent may read them."""
    for path in ("everstep.toml", "agents/a.md", ".git/config", "nested/everstep.toml"):
        assert not ground.read(path).startswith("Error")


def test_hooks_and_configuration_elsewhere_are_not_written(ground: FileTree) -> None:
    """9.2.10: at the paths that a repository names, in the base directory or above it; missing ones too."""
    (ground.base / ".git/config").write_text("[include]\npath = ../git.cfg\n")
    (ground.base / "git.cfg").write_text("[core]\n\thooksPath = .hooks/here\n")
    for path in ("git.cfg", ".hooks/here/pre-commit", "sub/../.hooks/here/x"):
        assert ground.write(path) == OUTSIDE
    assert not (ground.base / ".hooks/here").exists()
    assert ground.write(".hooks/README").startswith("Wrote")


def test_paths_that_a_policy_names_are_permitted(ground: FileTree) -> None:
    """9.2.10: except for the data of an installation."""
    (ground.base / ".claude").mkdir()
    policy = ExecutionPolicy.in_dir(ground.base).with_writable_paths(
        ground.base / ".claude", ground.base / ".everstep"
    )
    inside = str(ground.base / ".claude" / "notes.md")
    assert ground.call("write_file", policy, path=inside, content="x").startswith("Wrote")
    assert ground.call("write_file", policy, path=".everstep/x", content="x") == OUTSIDE
    assert ground.call("read_file", policy, path=".everstep/api-secret") == OUTSIDE


def test_a_search_does_not_enter_data(ground: FileTree) -> None:
    """9.2.10: names in there are not listed either."""
    found = ground.call("search_files", patterns=["**/api-secret", "**/temporal.db", "**/a.txt"])
    assert "api-secret" not in found.replace("[**/api-secret]", "")
    assert "nested/.everstep" not in found
    assert "a.txt" in found


def test_the_data_of_an_installation_is_not_a_base_directory(ground: FileTree) -> None:
    """9.2.10: with every policy."""
    protect([ground.base])
    assert ground.read("a.txt") == OUTSIDE
    assert ground.write("new") == OUTSIDE


def test_the_data_of_all_installations_of_this_user_are_closed(
    ground: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.2.10: without configuration."""
    protect()
    state = ground.base / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    (state / "everstep" / "abc").mkdir(parents=True)
    (state / "everstep" / "abc" / "api-secret").write_text("key")
    assert ground.read("state/everstep/abc/api-secret") == OUTSIDE


def test_the_environment_that_the_worker_runs_from_is_read_only(
    ground: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.2.10: a file written there would run at its next start."""
    packages = ground.base / ".venv" / "lib"
    packages.mkdir(parents=True)
    monkeypatch.setattr("sys.prefix", str(packages.parent))
    protect()
    assert ground.write(".venv/lib/sitecustomize.py") == OUTSIDE


def test_other_files_in_the_base_directory_are_not_protected(ground: FileTree, tmp_path: Path) -> None:
    """9.2.10: names that only resemble protected ones."""
    del tmp_path
    for path in ("environment", ".gitignore", ".github/x", "everstep.tomls", "a.env", "git/config", "half/x"):
        assert ground.write(path).startswith("Wrote")
