"""Where the data of a local installation are, and the messages of a start about them."""

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.data_folder import (
    ProjectRecord,
    data_folder,
    find_data_folder,
    is_in_container,
    known_data_folder,
    private_folders,
    record_project,
)
from everstep.runtime.embedded import EmbeddedError
from everstep.runtime.embedded.folder import prepare
from everstep.runtime.git_repository import Repository, plain_remote
from everstep.runtime.settings import Settings

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Project = Callable[[str], Path]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of this test, and the data folder below it."""
    for name in ("EVERSTEP_DATA", "EVERSTEP_DATA_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # These tests may run in a container.
    monkeypatch.setattr("everstep.runtime.data_folder.is_in_container", lambda: False)
    return tmp_path / "home" / ".local" / "state" / "everstep"


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Makes a project's folder the working directory."""

    def enter_project(name: str) -> Path:
        folder = tmp_path / "projects" / name
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        return folder

    return enter_project


def fill(data: Path) -> Path:
    """Creates the files of an installation that was started there."""
    prepare(data)
    (data / "postgres").mkdir(exist_ok=True)
    (data / "postgres" / "PG_VERSION").write_text("18\n")
    record_project(data)
    return data


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S603, S607


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestWhere:
    """Rule 13.1.1."""

    def test_it_is_outside_of_the_project_and_another_for_each(self, state: Path, enter: Project) -> None:
        """13.1.1"""
        project = enter("one")
        one = data_folder(Settings())
        assert one.parent == state
        assert not one.is_relative_to(project)
        enter("two")
        assert data_folder(Settings()) != one

    def test_a_link_to_a_project_has_the_same_data(
        self, state: Path, enter: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """13.1.1"""
        one = enter("one")
        direct = data_folder(Settings())
        link = one.with_name("link")
        link.symlink_to(one)
        monkeypatch.chdir(f"{link}/")
        assert data_folder(Settings()) == direct
        assert direct.parent == state

    def test_the_configured_state_home_is_used_unless_it_is_relative(
        self, state: Path, enter: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """13.1.1"""
        enter("one")
        monkeypatch.setenv("XDG_STATE_HOME", "relative")
        assert data_folder(Settings()).parent == state
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        assert data_folder(Settings()).parent == tmp_path / "state" / "everstep"

    @pytest.mark.parametrize("name", ["EVERSTEP_DATA", "EVERSTEP_DATA_DIR"])
    @pytest.mark.usefixtures("state")
    def test_the_environment_may_name_it(
        self, enter: Project, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """13.1.1"""
        project = enter("one")
        monkeypatch.setenv(name, "here/../there")
        assert data_folder(Settings.read()) == project / "there"

    @pytest.mark.usefixtures("state")
    def test_without_a_home_it_has_to_be_configured(
        self, enter: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """13.1.1"""
        enter("one")
        monkeypatch.setenv("HOME", "relative")
        with pytest.raises(InvalidInput, match=r"no home folder .* name the data folder with --data"):
            data_folder(Settings())
        assert known_data_folder(Settings()) is None

    @pytest.mark.usefixtures("state")
    def test_a_deleted_working_directory_is_reported(self, enter: Project) -> None:
        enter("gone").rmdir()
        with pytest.raises(InvalidInput, match="the current folder is gone"):
            data_folder(Settings())


class TestInsideTheProject:
    """Rule 13.1.2."""

    def test_data_created_there_are_found(self, state: Path, enter: Project) -> None:
        """13.1.2"""
        inside = fill(enter("one") / ".everstep")
        found = find_data_folder(Settings())
        assert found.folder == data_folder(Settings()) == inside
        [remark] = found.remarks
        assert remark.startswith(f"The data of this project are in {inside}, inside the project.")
        assert f"mkdir -p {state} && mv {inside} {state}/" in remark

    @pytest.mark.usefixtures("state")
    def test_data_of_an_earlier_release_are_found_by_its_servers_start_command(self, enter: Project) -> None:
        """13.1.2"""
        inside = enter("one") / ".everstep"
        fill(inside)
        (inside / "project.json").unlink()
        assert data_folder(Settings()) != inside
        (inside / "postgres" / "postmaster.opts").write_text(f'/bin/postgres "-D" "{inside}/postgres"\n')
        assert data_folder(Settings()) == inside

    def test_data_that_came_with_a_project_are_not_used(self, state: Path, enter: Project) -> None:
        """13.1.2: its files would decide which programs the database server runs."""
        inside = fill(enter("theirs") / ".everstep")
        cloned = enter("ours") / ".everstep"
        inside.rename(cloned)
        found = find_data_folder(Settings())
        assert found.folder.parent == state
        assert found.remarks[-1] == (
            f"{cloned} holds data that were not created here, and is not used. "
            "If they are yours: everstep --data .everstep up"
        )
        assert data_folder(Settings(data_dir=Path(".everstep"))) == cloned

    @pytest.mark.usefixtures("state")
    def test_agents_alone_are_not_data(self, enter: Project) -> None:
        """13.1.2"""
        inside = enter("one") / ".everstep"
        (inside / "agents").mkdir(parents=True)
        assert data_folder(Settings()) != inside
        prepare(data_folder(Settings(data_dir=Path(".everstep"))))
        assert mode(inside) == 0o700


class TestStartMessages:
    """Rules 13.1.3 and 13.1.4."""

    def test_the_first_start_says_where_the_data_will_be(self, enter: Project) -> None:
        """13.1.3"""
        enter("one")
        found = find_data_folder(Settings())
        assert found.remarks == (
            f"This project has no data yet. Its data will be stored in {found.folder} "
            "(--data and EVERSTEP_DATA name another folder).",
        )
        fill(found.folder)
        assert find_data_folder(Settings()).remarks == ()

    @pytest.fixture(autouse=True)
    def at_home(self, state: Path) -> None:
        """All of them."""

    def test_a_configured_folder_needs_no_message(self, enter: Project) -> None:
        """13.1.3"""
        found = find_data_folder(Settings(data_dir=enter("one") / "data"))
        assert found.is_new
        assert found.remarks == ()

    def test_after_a_move_of_the_project_its_old_data_are_reported(self, enter: Project) -> None:
        """13.1.4"""
        before = enter("one")
        data = fill(data_folder(Settings()))
        before.rename(before.with_name("moved"))
        enter("moved")
        assert find_data_folder(Settings()).remarks[1] == (
            f"The same project has data in {data}, from {before}. To use them: everstep --data {data} up"
        )
        record_project(data)
        record = ProjectRecord.read(data)
        assert record
        assert record.project == before.with_name("moved")

    def test_in_a_clone_the_data_of_its_origin_are_reported(self, enter: Project, tmp_path: Path) -> None:
        """13.1.4"""
        origin = enter("origin")
        git(origin, "init", "-q")
        git(origin, "commit", "-q", "--allow-empty", "-m", "first")
        data = fill(data_folder(Settings()))
        git(origin, "clone", "-q", str(origin), str(tmp_path / "projects" / "clone"))
        enter("clone")
        assert f"--data {data} up" in find_data_folder(Settings()).remarks[1]
        enter("stranger")
        assert len(find_data_folder(Settings()).remarks) == 1

    def test_an_unrelated_project_is_not_mentioned(self, enter: Project) -> None:
        """13.1.4"""
        enter("one")
        fill(data_folder(Settings()))
        enter("two")
        assert len(find_data_folder(Settings()).remarks) == 1

    def test_an_unreadable_record_is_ignored(self, enter: Project) -> None:
        enter("one")
        data = fill(data_folder(Settings()))
        (data / "project.json").write_text("{")
        enter("two")
        assert len(find_data_folder(Settings()).remarks) == 1

    def test_in_a_container_the_message_asks_for_a_configured_folder(
        self, enter: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """13.1.5"""
        enter("one")
        monkeypatch.setattr("everstep.runtime.data_folder.is_in_container", lambda: True)
        monkeypatch.setattr("everstep.runtime.data_folder._goes_with_container", bool)
        assert (
            "mount a volume and name the data folder with --data or EVERSTEP_DATA."
            in (find_data_folder(Settings()).remarks[-1])
        )
        assert find_data_folder(Settings(data_dir=Path("data"))).remarks == ()

    def test_a_container_is_recognised(self, tmp_path: Path) -> None:
        """13.1.5"""
        sign = tmp_path / "sign"
        assert not is_in_container((str(sign),), {})
        sign.touch()
        assert is_in_container((str(sign),), {})
        assert is_in_container((), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


class TestRepositories:
    @pytest.mark.parametrize(
        "url",
        [
            "https://github.com/me/it.git",
            "https://me:token@github.com/me/it",
            "git@github.com:me/it.git",
            "ssh://git@github.com/me/it/",
        ],
    )
    def test_a_remote_is_the_same_in_every_notation(self, url: str) -> None:
        assert plain_remote(url) == "github.com/me/it"

    def test_a_folder_that_is_not_a_repository_matches_no_other(self, tmp_path: Path) -> None:
        assert Repository.of(tmp_path) == Repository()
        assert not Repository().is_same_as(Repository())

    def test_no_program_of_the_repository_is_run(self, tmp_path: Path) -> None:
        """A partial clone names the program that fetches what it lacks."""
        git(tmp_path, "init", "-q")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
        ran = tmp_path / "ran"
        for key, value in {
            "remote.origin.url": f"ext::sh -c touch% {ran}",
            "remote.origin.promisor": "true",
            "remote.origin.uploadpack": f"touch {ran}",
            "extensions.partialClone": "origin",
            "core.repositoryFormatVersion": "1",
            "core.fsmonitor": f"touch {ran}",
            "protocol.ext.allow": "always",
            "core.pager": f"touch {ran}",
        }.items():
            git(tmp_path, "config", key, value)
        for each in (tmp_path / ".git" / "objects").glob("??/*"):
            each.unlink()
        Repository.of(tmp_path)
        assert not ran.exists()


class TestTheFolder:
    """Rule 13.1.6."""

    def test_an_open_folder_gets_private_permissions(self, tmp_path: Path) -> None:
        """13.1.6"""
        data = tmp_path / "data"
        (data / "logs").mkdir(parents=True)
        data.chmod(0o755)
        for name in ("temporal.db", "services.json", "logs/temporal.log"):
            (data / name).touch()
            (data / name).chmod(0o644)
        prepare(data)
        assert [mode(data), mode(data / "logs")] == [0o700] * 2
        assert {mode(data / name) for name in ("temporal.db", "services.json", "logs/temporal.log")} == {
            0o600
        }

    @pytest.mark.parametrize("name", [".", "../project"])
    def test_a_folder_with_other_files_is_left_unchanged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """13.1.6: `--data .` would take away a project's group permissions, and mix data into it."""
        project = tmp_path / "project"
        project.mkdir(mode=0o755)
        (project / "everstep.toml").touch()
        monkeypatch.chdir(project)
        with pytest.raises(EmbeddedError, match=r"contains other files \(everstep.toml\)"):
            prepare(data_folder(Settings(data_dir=Path(name))))
        assert mode(project) == 0o755

    def test_a_file_in_its_place_is_reported(self, tmp_path: Path) -> None:
        """13.1.6"""
        (tmp_path / "file").touch()
        with pytest.raises(EmbeddedError, match="is a file and cannot be the data directory; name another"):
            prepare(tmp_path / "file")
        with pytest.raises(
            EmbeddedError, match="cannot be the data directory: Not a directory; name another"
        ):
            prepare(tmp_path / "file" / "data")

    def test_an_impossible_name_is_reported(self, tmp_path: Path) -> None:
        """13.1.6"""
        with pytest.raises(EmbeddedError, match="File name too long; name another one with --data"):
            prepare(tmp_path / ("x" * 300))
        with pytest.raises(InvalidInput, match="cannot be a data folder: embedded null"):
            data_folder(Settings(data_dir=Path("a\0b")))

    @AS_ROOT
    def test_a_folder_of_another_user_is_refused_also_to_root(self, tmp_path: Path) -> None:
        """13.1.6: its owner could redirect root's writes."""
        data = tmp_path / "data"
        data.mkdir()
        os.chown(data, 54_321, 54_321)
        with pytest.raises(EmbeddedError, match="belongs to user 54321"):
            prepare(data)


def test_paths_that_no_agent_may_reach(state: Path, enter: Project, tmp_path: Path) -> None:
    """13.1.7: this project's data, those of all others, the database's socket, attached files and weights."""
    project = enter("one")
    url = f"postgresql://everstep:x@/everstep?host={tmp_path}/elsewhere&port=5432"
    files, weights = project / "files", project / "weights"
    settings = Settings(database_url=url, attachments=str(files), models_dir=weights)
    assert private_folders(settings) == (
        data_folder(Settings()),
        state,
        project / ".everstep",
        tmp_path / "elsewhere",
        files,
        weights,
    )
    assert private_folders(Settings(data_dir=tmp_path / "data", database_url="?"))[0] == tmp_path / "data"
