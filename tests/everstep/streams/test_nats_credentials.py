"""Files of credentials, of a real operator with an account and users, on a real server."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from everstep.agent_domain.errors import InvalidInput
from everstep.streams.nats_connection import NatsConnection, NatsServers, NatsUnavailable, connect
from everstep.streams.nats_credentials import NatsCredentials
from tests.everstep.streams.test_bus_contract import RecordingHub, Ways, wait_for_interest
from tests.everstep.streams.test_publisher import STREAM, an_envelope, wait_until
from tests.nats_credentials import NatsOperator
from tests.nats_server import NatsServer, open_nats

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def operator() -> NatsOperator:
    return NatsOperator()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nats(
    operator: NatsOperator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[NatsServer]:
    """A server that accepts only users of the operator's account."""
    file = tmp_path_factory.mktemp("nats") / "nats.json"
    operator.write_configuration(file)
    async with open_nats("-c", str(file)) as server:
        yield server


@pytest.fixture
def file(operator: NatsOperator, tmp_path: Path) -> Path:
    """The credentials of a user, who may use the subjects of Everstep."""
    made = tmp_path / "everstep.creds"
    operator.write_credentials(made)
    return made


class WaysWithCredentials(Ways):
    """Writers and gateways that log in with a file."""

    def __init__(self, nats: NatsServer, file: Path) -> None:
        super().__init__(nats)
        self._file = file

    @property
    def servers(self) -> NatsServers:
        assert self.nats
        return NatsServers.of(self.nats.url, self._file)


async def test_events_travel_with_the_documented_permissions(nats: NatsServer, file: Path) -> None:
    """Follows rule 7.8.5: the user may publish and subscribe to `everstep.>` only."""
    hub, ways = RecordingHub(STREAM), WaysWithCredentials(nats, file)
    async with ways.gateway(hub), ways.writer() as bus:
        await wait_for_interest(bus)
        bus.publish(STREAM, [an_envelope(1), an_envelope(2)])
        await wait_until(lambda: len(hub.pushed) == 2)
    assert hub.numbers == [1, 2]


async def test_credentials_of_another_operator_are_refused(nats: NatsServer, tmp_path: Path) -> None:
    """7.8.7: in one sentence that names the file."""
    foreign = tmp_path / "foreign.creds"
    NatsOperator().write_credentials(foreign)
    with pytest.raises(NatsUnavailable) as refused:
        await connect(NatsServers.of(nats.url, foreign), "test")
    assert str(refused.value) == (
        f"NATS at 127.0.0.1:{nats.port} refuses the credentials; check that EVERSTEP_NATS_CREDENTIALS "
        f"('{foreign}') has those of a user of this server's accounts"
    )


async def test_expired_credentials_say_when(nats: NatsServer, operator: NatsOperator, tmp_path: Path) -> None:
    """7.8.7"""
    expired = tmp_path / "expired.creds"
    operator.write_credentials(expired, datetime(2020, 5, 17, 8, tzinfo=UTC))
    with pytest.raises(NatsUnavailable, match="refuses the credentials; those in") as refused:
        await connect(NatsServers.of(nats.url, expired), "test")
    assert str(refused.value).endswith("expired at 2020-05-17 08:00:00 UTC, so create new ones")


async def test_missing_credentials_are_refused(nats: NatsServer) -> None:
    """7.8.7"""
    with pytest.raises(NatsUnavailable, match="or set EVERSTEP_NATS_CREDENTIALS"):
        await connect(NatsServers.of(nats.url), "test")


async def test_a_server_with_passwords_refuses_a_file(file: Path) -> None:
    """7.8.7"""
    async with open_nats("--user", "ann", "--pass", "secret") as other:
        with pytest.raises(NatsUnavailable, match="refuses the credentials; check that EVERSTEP_NATS_CRED"):
            await connect(NatsServers.of(other.url, file), "test")


async def test_credentials_that_expire_are_replaced_without_a_restart(
    nats: NatsServer, operator: NatsOperator, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """7.8.7: the log says that they expired, and a connection reads the file again."""
    operator.write_credentials(file, datetime.now(UTC) + timedelta(seconds=1.5))

    async def subscribe() -> None:
        """Nothing."""

    connection = NatsConnection(NatsServers.of(nats.url, file), "test", subscribe)
    connection.start()
    try:
        await wait_until(lambda: connection.is_connected)
        await wait_until(lambda: "so create new ones" in caplog.text)
        assert not connection.is_connected
        operator.write_credentials(file)
        await wait_until(lambda: connection.is_connected)
    finally:
        await connection.aclose()
    assert caplog.text.count("so create new ones") == 1


@pytest.mark.parametrize(
    ("part", "damaged"),
    [("-BEGIN USER NKEY SEED", "-"), ("-BEGIN NATS USER JWT", "-"), ("\nSU", "\nSX"), ("eyJ", "ey")],
    ids=["no seed", "no JWT", "damaged seed", "damaged JWT"],
)
async def test_a_damaged_file_is_refused_at_the_start(file: Path, part: str, damaged: str) -> None:
    """7.8.7"""
    file.write_text(file.read_text().replace(part, damaged))
    with pytest.raises(InvalidInput, match="is no file of credentials of NATS: it has a JWT and a seed"):
        NatsCredentials.read(file)


async def test_a_file_of_another_system_is_read(file: Path) -> None:
    """With the line ends of Windows, and without the decoration."""
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert NatsCredentials.read(file).expires_at is None
