"""One local installation and one browser for the tests of this folder.

All its files run in one process (`tests/conftest.py`). What they share ends before the first test that does
not need it: an installation computes, and Playwright keeps the thread's event loop.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import sync_playwright

from tests.browsers.chromium import chromium_path
from tests.console.people import Installation, People, Profiles, open_installation
from tests.programs import NAME

_SHARED: Final = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End what the tests share after the last of them."""
    if not isinstance(nextitem, pytest.Function) or "profiles" not in nextitem.fixturenames:
        _SHARED.close()
        _shared_installation.cache_clear()
        _shared_profiles.cache_clear()


def pytest_sessionfinish() -> None:
    """End it also if the run was interrupted."""
    _SHARED.close()


@pytest.fixture
def installation(programs: Path) -> Installation:
    """A running installation with the agents of `desk.py`."""
    return _shared_installation(programs / NAME)


@pytest.fixture
def profiles() -> Profiles:
    """Profiles of the installed Chromium."""
    return _shared_profiles()


@cache
def _shared_installation(everstep: Path) -> Installation:
    return _SHARED.enter_context(open_installation(everstep))


@cache
def _shared_profiles() -> Profiles:
    return _SHARED.enter_context(_open_browser())


@contextmanager
def _open_browser() -> Generator[Profiles]:
    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield Profiles(browser)
        browser.close()


@pytest.fixture
def people(installation: Installation, profiles: Profiles, tmp_path: Path) -> Generator[People]:
    """Signs people in, each with a browser of their own; at the end, no page has reported a violation."""
    people = People(installation, profiles, tmp_path)
    try:
        yield people
    except BaseException:
        people.keep_pictures()
        raise
    finally:
        people.close()
    assert people.violations == []
