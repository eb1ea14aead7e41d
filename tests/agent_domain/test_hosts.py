"""The host names that a server accepts."""

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.hosts import AllowedHosts, Host

LOOPBACK = [
    "localhost",
    "LOCALHOST:8080",
    "localhost.",
    "localhost.:80",
    "127.0.0.1",
    "127.0.0.1:1",
    "[::1]",
    "[::1]:8080",
]
NAMED = [
    "api.example.com",
    "API.Example.com:443",
    "a.wild.example",
    "a.b.wild.example",
    "10.1.2.3:80",
    "only.example:81",
]
FOREIGN = [
    "evil.com",
    "evil.com:8080",
    "localhost.evil.com",
    "evil.localhost.com",
    "127.0.0.1.evil.com",
    "api.example.com.evil.com",
    "notapi.example.com",
    "wild.example",
    "evilwild.example",
    "only.example:82",
    "only.example",
    "11.1.2.3",
    "0.0.0.0",  # noqa: S104 -- not listened on
    "169.254.169.254",
    "[::2]",
    "2130706433",
    "0x7f000001",
    "127.1",
]
NONSENSE = [
    "",
    " ",
    "a b",
    "localhost evil.com",
    "http://localhost",
    "localhost/",
    "localhost@evil.com",
    "localhost,evil.com",
    "evil.com@localhost",
    "[::1",
    "::1",
    "localhost:",
    "localhost:x",
    ".",
    "[]",
    "lo\u0131calhost",
    "localhost\x00",
    "*",
]


@pytest.fixture
def hosts() -> AllowedHosts:
    return AllowedHosts.of(["api.example.com", "*.wild.example", "10.0.0.0/8", "only.example:81"])


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_names_are_always_accepted(hosts: AllowedHosts, host: str) -> None:
    """13.3.1"""
    assert hosts.refusal([host]) is None
    assert AllowedHosts().refusal([host]) is None


@pytest.mark.parametrize("host", NAMED)
def test_configured_names_are_accepted(hosts: AllowedHosts, host: str) -> None:
    """13.3.1"""
    assert hosts.refusal([host]) is None
    assert AllowedHosts().refusal([host]) is not None


@pytest.mark.parametrize("host", [*FOREIGN, *NONSENSE])
def test_all_others_are_refused(hosts: AllowedHosts, host: str) -> None:
    """13.3.1"""
    refusal = hosts.refusal([host])
    assert refusal
    assert refusal.endswith("is not served here; EVERSTEP_ALLOWED_HOSTS lists the accepted hosts.")


def test_a_request_names_one_host(hosts: AllowedHosts) -> None:
    """13.3.1"""
    assert hosts.refusal([]) == "A request needs exactly one Host header; this one has none."
    assert (
        hosts.refusal(["localhost", "localhost"])
        == "A request needs exactly one Host header; this one has 2."
    )


def test_metrics_are_hidden_under_public_names() -> None:
    """13.3.6: those that other machines resolve; Prometheus reads a process by its address."""
    hosts = AllowedHosts.of(["*"], ["api.example.com", "localhost", "10.1.2.3", ""])
    for header in ("api.example.com", "API.example.com.:8443"):
        assert hosts.hides_metrics([header])
    for header in ("localhost:8000", "10.1.2.3", "10.1.2.4:8080", "api", "%"):
        assert not hosts.hides_metrics([header])
    assert not hosts.hides_metrics([])


def test_any_name_may_be_allowed() -> None:
    """13.3.1"""
    any_name = AllowedHosts.of(["*"])
    assert [any_name.refusal(hosts) for hosts in (["evil.com"], [], ["a", "b"])] == [None] * 3


@pytest.mark.parametrize(
    "name", ["https://api.example.com", "api.example.com/v1", "a b", "10.0.0.0/99", "", "*."]
)
def test_an_invalid_name_is_refused_when_it_is_set(name: str) -> None:
    """13.3.1"""
    with pytest.raises(
        InvalidInput, match="in EVERSTEP_ALLOWED_HOSTS is not a host; write names without scheme"
    ):
        AllowedHosts.of([name])


@pytest.mark.parametrize("name", ["::1", "[fd00::1]", "fd00::1"])
def test_addresses_of_version_6_may_be_set_with_and_without_brackets(name: str) -> None:
    """13.3.1"""
    hosts = AllowedHosts.of([name])
    assert hosts.refusal([f"[{name.strip('[]')}]:8080"]) is None


def test_a_refusal_contains_no_terminal_control_characters() -> None:
    refusal = AllowedHosts().refusal(["\x1b[31mevil" + "x" * 500])
    assert refusal
    assert refusal.isprintable()
    assert len(refusal) < 250
    assert Host.parse("A.b.:1") == Host("a.b", 1)
