import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.runtime.file_changes import Snapshot, changed_files, file_changes, watched_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("agents.py", "shop/orders.py", "agents/clerk.md", "agents/skills/tone/SKILL.md"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    return tmp_path


def names(project: Path, *sources: str) -> set[str]:
    return {str(path.relative_to(project)) for path in watched_files(project, sources)}


def test_modules_settings_and_files_of_agents_are_watched(project: Path) -> None:
    """13.6.4"""
    others = ("everstep.toml", "demo.yaml", "README.md", "notes.txt")
    skipped = (".venv/x.py", ".git/x.py", "env/pyvenv.cfg", "env/lib/x.py", "shop/__pycache__/x.py")
    for name in (*others, *skipped):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")

    modules = {"agents.py", "shop/orders.py", "everstep.toml", "demo.yaml"}
    assert names(project) == modules
    assert names(project, "agents:agents", "nowhere:agents", "not a module") == modules
    assert names(project, "agents") == modules | {"agents/clerk.md", "agents/skills/tone/SKILL.md"}
    assert names(project, "agents/clerk.md") == modules | {"agents/clerk.md"}


def test_a_package_outside_of_the_project_is_watched(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13.6.4"""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    module = elsewhere / "desk_of_another_place" / "agents.py"
    module.parent.mkdir()
    (module.parent / "__init__.py").write_text("")
    module.write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])

    assert module in watched_files(project, ["desk_of_another_place.agents:agents"])


def test_links_that_lead_nowhere_or_in_circles_do_no_harm(project: Path) -> None:
    """13.6.4"""
    (project / "lost.py").symlink_to(project / "nothing.py")
    (project / "shop" / "again").symlink_to(project)

    assert names(project) == {"agents.py", "shop/orders.py"}


@pytest.mark.parametrize("way", ["in place", "by rename", "removed", "new"])
def test_every_way_of_writing_is_a_change(project: Path, way: str) -> None:
    """13.6.4"""
    file = project / "agents.py"
    before = watched_files(project, [])
    match way:
        case "in place":
            file.write_text("22")
        case "by rename":
            # The same size, as in an editor that writes another file and renames it.
            (project / "agents.py~").write_text("2")
            (project / "agents.py~").rename(file)
        case "removed":
            file.unlink()
        case _:
            file = project / "more.py"
            file.write_text("")

    after = watched_files(project, [])

    assert changed_files(before, after) == (file,)
    assert changed_files(after, after) == ()


async def test_a_change_counts_once_files_are_left_alone() -> None:
    """13.6.4"""
    a, b = Path("a.py"), Path("b.py")
    states: Iterator[Snapshot] = iter(
        [
            {a: (1, 1, 1)},
            {a: (1, 1, 1)},  # nothing
            {a: (2, 1, 1)},  # one file is written,
            {a: (2, 1, 1), b: (1, 1, 1)},  # then another one,
            {a: (2, 1, 1), b: (1, 1, 1)},  # and no more.
            {a: (3, 1, 1), b: (1, 1, 1)},  # A change that is taken back
            {a: (2, 1, 1), b: (1, 1, 1)},
            {a: (2, 1, 1), b: (1, 1, 1)},
            {b: (1, 1, 1)},
            {b: (1, 1, 1)},
        ]
    )
    looks = 0

    def look() -> Snapshot:
        nonlocal looks
        looks += 1
        return next(states)

    async def sleep(_seconds: float) -> None:
        pass

    changes = file_changes(look, sleep)

    assert await anext(changes) == (a, b)
    assert looks == 5
    assert await anext(changes) == (a,)
    await changes.aclose()
