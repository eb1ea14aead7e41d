"""One local installation and one browser for all tests of a file."""

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browsers.chromium import chromium_path
from tests.console.people import Installation, People, open_installation
from tests.programs import NAME


@pytest.fixture(scope="module")
def installation(programs: Path) -> Generator[Installation]:
    """A running installation with the agents of `desk.py`."""
    with open_installation(programs / NAME) as installation:
        yield installation


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """The installed Chromium."""
    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def people(installation: Installation, browser: Browser, tmp_path: Path) -> Generator[People]:
    """Signs people in, each with a browser of their own; at the end, no page has reported a violation."""
    people = People(installation, browser, tmp_path)
    try:
        yield people
    except BaseException:
        people.keep_pictures()
        raise
    finally:
        people.close()
    assert people.violations == []
