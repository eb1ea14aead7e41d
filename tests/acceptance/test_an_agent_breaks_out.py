"""`everstep up` in a project, and an agent with orders to break out: as root and as an ordinary user."""

import json
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.everstep.capabilities.bash.surroundings import need_a_sandbox
from tests.everstep.capabilities.bash.users import WorkerUser, open_worker_user
from tests.programs import NAME

SECRET = "S3CRET-of-the-project"  # noqa: S105 -- of no account
OUTSIDE = "Error: Path is outside the allowed directory"
ANY_PORT = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--gateway-port", "0")
COMMAND = "import sys; sys.argv[0] = 'everstep'; from everstep.cli.main import main; main()"

AGENTS = """
import json
from pathlib import Path
from everstep import AgentBuilder, ScriptedModel, ToolCallingDriver, UseBash, UseFileTools, calls

said = json.loads((Path(__file__).parents[1] / "calls.json").read_text())
model = ScriptedModel(*(calls((name, args)) for name, args in said), "I tried all.")
agents = [
    AgentBuilder.base().with_name("breaker").with_max_steps(99)
    .with_capability(UseBash()).with_capability(UseFileTools(".")).with_driver(ToolCallingDriver(model))
]
"""

SHELL = """
cat .env .env.local sub/.env
cat .everstep/api-secret .everstep/database-password; find . -name api-secret
ls -R .everstep/run; psql -h .everstep/run -U postgres -c "COPY x FROM PROGRAM 'id'"
"$PYTHON" -I -S -c 'import socket
socket.socket(socket.AF_UNIX).connect(".everstep/run/.s.PGSQL.5432"); print("ESC" + "APED")'
echo "x" >>.everstep/postgres/postgresql.auto.conf && echo ESC""APED
echo 'agents = ["stranger:x"]' >everstep.toml && echo ESC""APED
mkdir -p .everstep/agents && echo x >.everstep/agents/x.md && echo ESC""APED
mkdir -p .claude/agents && echo x >.claude/agents/x.md && echo ESC""APED
echo x >>my_agents.py && echo ESC""APED
rm my_agents.py && echo ESC""APED
mkdir my_agents && echo x >my_agents/__init__.py && echo ESC""APED
echo x >.git/hooks/pre-commit && echo ESC""APED
echo x >>.git/config && echo ESC""APED
mv .git g && echo ESC""APED
mv .everstep e && echo ESC""APED
echo x >/proc/1/mem && echo ESC""APED
echo 0 >/proc/self/oom_score_adj && echo ESC""APED
cat /proc/[0-9]*/limits | grep -E '^Max (data|processes)' | grep unlimited && echo ESC""APED
true
"""

READ = (".env", "sub/.env", ".everstep/api-secret", ".everstep/database-password")
WRITE = (
    "everstep.toml",
    ".everstep/agents/x.md",
    ".everstep/postgres/postgresql.auto.conf",
    ".claude/agents/x.md",
    "my_agents.py",
    ".git/config",
    ".git/hooks/pre-commit",
    ".env",
)


@pytest.fixture
def user(kind: str) -> Iterator[WorkerUser]:
    """The user who runs these tests, or a user who is not root."""
    need_a_sandbox()
    yield from open_worker_user(kind)


@pytest.fixture
def everstep(kind: str, user: WorkerUser, programs: Path) -> list[str]:
    """The words of the command; only the user of these tests can start its forks."""
    return [str(programs / NAME)] if kind == "own" else [user.python, "-c", COMMAND]


@contextmanager
def up(user: WorkerUser, project: Path, *everstep: str) -> Generator[None]:
    """Start it as a user does, and stop it with Ctrl-C."""
    command = [*everstep, "up", "--json", *ANY_PORT]
    with (user.folder / "err").open("w") as err, user.start(command, project, err) as process:
        assert process.stdout
        try:
            assert process.stdout.readline(), (user.folder / "err").read_text()
            yield
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.parametrize(("kind", "data"), [("own", "state"), ("ordinary", ".everstep")])
def test_nothing_of_the_installation_is_read_or_changed(
    data: str, user: WorkerUser, everstep: list[str]
) -> None:
    """9.1.9, 9.1.10 and 9.2.10: with the data outside the project, and with data in it on request."""
    project = user.folder / "project"
    (project / "sub").mkdir(parents=True)
    for name in (".env", ".env.local", "sub/.env"):
        (project / name).write_text(SECRET)
    (project / "my_agents.py").write_text(AGENTS)
    script = f"PYTHON={sys.executable}; exec >out.txt 2>&1{SHELL}"
    tried = [
        ("bash", {"command": script}),
        *(("read_file", {"path": path}) for path in READ),
        *(("write_file", {"path": path, "content": "x"}) for path in WRITE),
        ("write_file", {"path": "allowed.txt", "content": "x"}),
    ]
    (user.folder / "calls.json").write_text(json.dumps(tried))
    user.git(project, "init", "-q")
    before = {name: (project / name).read_text() for name in (".env", "my_agents.py", ".git/config")}
    command = [*everstep, "--agents", "my_agents:agents", *(["--data", data] if data != "state" else [])]

    with up(user, project, *command):
        ran = user.run([*command, "run", "--agent", "breaker", "Break out."], project)

    assert ran.returncode == 0, ran.stderr
    output = (project / "out.txt").read_text()
    assert "ESCAPED" not in output
    assert SECRET not in output + ran.stdout
    assert output.count("Permission denied") >= 3
    refused = [line for line in ran.stdout.splitlines() if OUTSIDE in line]
    assert len(refused) >= len(WRITE) + 2, ran.stdout
    assert {name: (project / name).read_text() for name in before} == before
    assert (project / "allowed.txt").read_text() == "x"
    left = {path.name for path in project.iterdir()}
    data_folder = {data} if data != "state" else set[str]()
    assert left - data_folder == {
        *(".env", ".env.local", ".git", "allowed.txt", "my_agents.py", "out.txt", "sub"),
    } | (left & {"__pycache__"})
    assert "commands of breaker: memory and processes are bounded by " in (user.folder / "err").read_text()
