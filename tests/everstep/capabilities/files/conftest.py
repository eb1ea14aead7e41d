"""The directory of the file tools, with both implementations of opening paths."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.capabilities.files import openat2
from tests.everstep.capabilities.files.ground import FileTree, open_public_directory
from tests.node import do_without


@pytest.fixture(params=["openat2", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both implementations; the first only where the kernel supports it."""
    if request.param != "openat2":
        monkeypatch.setattr(openat2, "is_available", lambda: False)
    elif not openat2.is_available():
        do_without("this kernel has no openat2, or a sandbox forbids it")
    return request.param


@pytest.fixture
def ground(way: str) -> Iterator[FileTree]:
    """A new directory."""
    del way
    with open_public_directory() as root:
        yield FileTree(Path(root))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed to disk: that would take minutes for thousands of files."""
    monkeypatch.setattr(os, "fsync", str)
