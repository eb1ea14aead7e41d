"""Words and names stay plain, and modules stay small: each room has limits, which fall and never rise.

A room that is above its limit is listed with file, line, the word or the name, and what to write instead.
"""

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import click
import pytest

from everstep.cli.main import commands
from everstep.http_api.app import create_app
from everstep.http_api.metrics import Metrics
from tests.language import ROOT, Finding, Measure, files, is_participle, measure, private_words

OPENAPI_WORDS: Final = 1.0


HELP_WORDS: Final = 1.0


class Limits(NamedTuple):
    """What a room may have: private words in a thousand, and participles in a hundred functions."""

    words: float
    participles: float
    async_participles: int


ROOMS: Final = {
    "activities": Limits(1.0, 3.0, 0),
    "agent_domain": Limits(1.0, 3.0, 0),
    "broadcast_gateway": Limits(1.0, 3.0, 0),
    "everstep": Limits(1.0, 3.0, 0),
    "workflows": Limits(1.0, 3.0, 0),
    "tests": Limits(1.0, 3.0, 1),
    "docs": Limits(1.0, 3.0, 0),
    "bench": Limits(1.0, 3.0, 1),
    "examples": Limits(1.0, 3.0, 0),
    "everstep/agents": Limits(1.0, 3.0, 0),
    "everstep/capabilities": Limits(1.0, 3.0, 0),
    "everstep/cli": Limits(1.0, 3.0, 0),
    "everstep/client": Limits(1.0, 3.0, 0),
    "everstep/console": Limits(1.0, 3.0, 0),
    "everstep/http_api": Limits(1.0, 3.0, 0),
    "everstep/inference": Limits(1.0, 3.0, 0),
    "everstep/local": Limits(1.0, 3.0, 0),
    "everstep/runtime": Limits(1.0, 3.0, 0),
    "everstep/steps": Limits(1.0, 3.0, 0),
    "everstep/store": Limits(1.0, 3.0, 0),
    "everstep/streams": Limits(1.0, 3.0, 0),
    "everstep/telemetry": Limits(1.0, 3.0, 0),
    "everstep/testing": Limits(1.0, 3.0, 0),
    "everstep/wires": Limits(1.0, 3.0, 0),
    "CHANGELOG.md": Limits(1.0, 3.0, 0),
    "CONTRIBUTING.md": Limits(1.0, 3.0, 0),
    "README.md": Limits(1.0, 3.0, 0),
}
PRODUCT: Final = ("agent_domain", "workflows", "activities", "broadcast_gateway", "everstep")


def listed(found: Iterable[Finding]) -> str:
    return "\n".join(map(str, found))


@cache
def room(name: str) -> Measure:
    folder = ROOT / name
    if name == "everstep":
        # The rooms below it have limits of their own, and links lead to rooms beside it.
        return measure(*folder.glob("*.py"))
    return measure(folder)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_is_within_its_limits(name: str) -> None:
    found, limits = room(name), ROOMS[name]
    assert found.per_thousand <= limits.words, listed(found.private)
    assert found.percent <= limits.participles, listed(found.participles)
    assert len(found.async_participles) <= limits.async_participles, listed(found.async_participles)


@pytest.mark.parametrize("name", ROOMS)
def test_a_limit_falls_with_its_room(name: str) -> None:
    """Whoever makes a room plainer lowers its limit, so that it stays so."""
    found, limits = room(name), ROOMS[name]
    assert limits.words - found.per_thousand <= max(1.0, 0.2 * limits.words)
    assert limits.participles - found.percent <= max(3.0, 0.2 * limits.participles)


def test_every_room_has_limits() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {
        "tests",
        "docs",
        "bench",
        "examples",
    }
    below = {
        f"everstep/{p.parent.name}" for p in ROOT.glob("everstep/*/__init__.py") if not p.parent.is_symlink()
    }
    pages = {path.name for path in ROOT.glob("*.md")}
    assert {*ROOMS} == folders | below | pages


def texts(document: object) -> Iterator[str]:
    """The texts for people in an OpenAPI document."""
    if isinstance(document, Mapping):
        for key, value in cast("Mapping[str, object]", document).items():
            if key in {"description", "summary"} and isinstance(value, str):
                yield value
            else:
                yield from texts(value)
    elif isinstance(document, list):
        for each in cast("list[object]", document):
            yield from texts(each)


def helps(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """What `--help` shows of a command and of those below it."""
    # With the settings of the program: click makes the option `-h, --help` of a command only once.
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from helps(found, f"{name} {below}", context)


def private(texts: Iterable[tuple[str, str]]) -> tuple[float, list[Finding]]:
    words, found = 0, list[Finding]()
    for place, text in texts:
        count, private = private_words(place, text)
        words, found = words + count, found + private
    return 1000 * len(found) / words, found


def test_the_api_is_described_in_plain_words() -> None:
    state: Any = SimpleNamespace(allowed_origins=(), allowed_hosts=(), metrics=Metrics())
    share, found = private(("OpenAPI", text) for text in texts(create_app(state).openapi()))
    assert share <= OPENAPI_WORDS, listed(found)


def test_help_is_in_plain_words() -> None:
    share, found = private(helps(commands, "everstep"))
    assert share <= HELP_WORDS, listed(found)


def test_titles_of_commits_are_in_plain_words() -> None:
    """Since the commit that brought this test."""
    git = ["git", "-C", str(ROOT)]
    begun = subprocess.run(  # noqa: S603 -- our own words
        [*git, "log", "--diff-filter=A", "--format=%H", "--", "tests/test_language.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    since = [f"{begun[-1]}..HEAD"] if begun else ["-0"]
    titles = subprocess.run(  # noqa: S603 -- our own words
        [*git, "log", "--no-merges", "--format=%h %s", *since], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    _, found = private([("", "a"), *((title.split()[0], title.partition(" ")[2]) for title in titles)])
    assert found == [], listed(found)


def definitions(kind: type[ast.ClassDef]) -> dict[str, list[str]]:
    """The public classes of the product by name, with their places."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in PRODUCT:
        for path in files(ROOT / name, ".py"):
            if "versions" in path.parts or any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, kind) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_no_class_has_the_name_of_another() -> None:
    twice = {name: places for name, places in definitions(ast.ClassDef).items() if len(places) > 1}
    assert twice == {}


def lengths() -> dict[str, int]:
    found: dict[str, int] = {}
    for name in (*PRODUCT, "tests", "bench", "examples"):
        for path in files(ROOT / name, ".py"):
            if not any(parent.is_symlink() for parent in path.parents):
                found[str(path.relative_to(ROOT))] = len(path.read_text(encoding="utf-8").splitlines())
    return found


def test_no_module_is_too_long() -> None:
    """At most 500 lines, and 800 in tests."""
    found = {
        name: count
        for name, count in lengths().items()
        if count > (800 if name.startswith("tests/") else 500)
    }
    assert found == {}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("answered", True),
        ("told", True),
        ("_state_kept", True),
        ("was_answered", False),
        ("on_closed", False),
        ("proceed", False),
        ("run_call", False),
        ("find_request", False),
    ],
)
def test_a_participle_is_recognised(name: str, answer: bool) -> None:
    assert is_participle(name) is answer


def test_a_private_word_is_found_with_what_to_write(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text('"""Tells whoever asks."""\n\n\nasync def answered() -> None:\n    """Nothing."""\n')
    found = measure(planted)
    assert [str(each) for each in found.private] == [
        "planted.py:1: 'tells'; write notifies, sends, publishes, reports",
        "planted.py:1: 'whoever'; write the caller, viewer, process or test that does it",
    ]
    assert [each.found for each in found.async_participles] == ["answered"]
