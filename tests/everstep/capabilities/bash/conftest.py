"""Fixtures of the sandbox tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.everstep.capabilities.bash.surroundings import (
    MARK,
    SECRET,
    SandboxHost,
    need_a_sandbox,
    open_sandbox_host,
)
from tests.everstep.capabilities.bash.users import WorkerUser, open_worker_user


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxHost]:
    """A machine to work on, with a secret outside of the base directory and one in the environment."""
    need_a_sandbox()
    with open_sandbox_host(tmp_path) as found:
        monkeypatch.setenv(MARK, found.mark)
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        yield found


@pytest.fixture(params=["own", "ordinary"])
def user(request: pytest.FixtureRequest) -> Iterator[WorkerUser]:
    """The user of the test run, which may be root, and a user without root's rights."""
    need_a_sandbox()
    yield from open_worker_user(request.param)
