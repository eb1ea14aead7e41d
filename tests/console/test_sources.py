"""The modules of the console: small and typed, without HTML made from text; libraries are what they say."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.console.site import STATIC
from tests.console import types

MODULES = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)
MOST_LINES = 300


def vendored() -> Iterator[tuple[str, dict[str, str]]]:
    for package in json.loads((STATIC / "vendor" / "vendor.json").read_text()):
        assert (STATIC / "vendor" / package["licence_file"]).stat().st_size > 500
        for file in package["files"]:
            yield package["package"], file


def test_the_libraries_are_those_that_were_published() -> None:
    """16.1.3: each file has the listed hash, and is the file of the package with the locked version."""
    listed = dict[str, str]()
    for package, file in vendored():
        content = (STATIC / "vendor" / file["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        published = types.installed_modules(types.LOCK) / package / file["path"]
        assert content == published.read_bytes()
        listed[file["file"]] = package
    assert set(listed) == {path.name for path in (STATIC / "vendor").glob("*.js")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_is_small_and_makes_no_html_from_text(path: Path) -> None:
    """16.1.3"""
    source = path.read_text()
    assert len(source.splitlines()) < MOST_LINES
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source
    )
    assert "https://" not in re.sub(r"//.*|/\*.*?\*/", "", source, flags=re.DOTALL)


def test_the_types_of_the_modules_are_correct() -> None:
    """16.1.3: TypeScript accepts their JSDoc."""
    assert types.findings() == ""
