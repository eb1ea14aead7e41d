"""The names that a policy allows, and the addresses that are always closed."""

from ipaddress import ip_address

import pytest

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.capabilities.network import (
    AllowedNetwork,
    host_name,
    is_public,
    parse_address,
    parse_network,
)
from everstep.agent_domain.errors import InvalidInput


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.1", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "169.254.1.1", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.88.99.1"),
        *("192.0.2.1", "198.51.100.1", "203.0.113.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "::127.0.0.1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "3fff::1", "5f00::1", "100::1"),
    ],
)
def test_addresses_outside_the_internet_are_closed(address: str) -> None:
    """9.1.15"""
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "151.101.0.223", "2606:4700::1111", "2a04:4e42::223"]
)
def test_hosts_of_the_internet_are_open(address: str) -> None:
    """9.1.15"""
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("listed", "host", "port", "is_allowed"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 80, True),
        ("pypi.org", "files.pypi.org", 443, False),
        ("pypi.org", "evilpypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.example", 443, False),
        ("pypi.org", "pypi.org", 22, False),
        ("*.github.com", "api.github.com", 443, True),
        ("*.github.com", "a.b.github.com", 443, True),
        ("*.github.com", "github.com", 443, False),
        ("*.github.com", "evilgithub.com", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("xn--bcher-kva.example", "Bücher.example", 443, True),
        ("example.com", "93.184.216.34", 443, False),
        ("example.com", "[2606:4700::1111]", 443, False),
        ("example.com", "exa mple.com", 443, False),
    ],
)
def test_a_list_allows_its_names(listed: str, host: str, port: int, is_allowed: bool) -> None:
    """9.1.14"""
    refusal = AllowedNetwork.of(parse_network([listed])).refusal(host, port)
    assert (refusal is None) == is_allowed, refusal


def test_true_allows_all_names_on_two_ports() -> None:
    """9.1.14"""
    allowed = AllowedNetwork.of(True)
    assert allowed.refusal("anything.example", 443) is None
    assert allowed.refusal("anything.example", 80) is None
    refusal = "The network policy allows the ports 80 and 443, and not 22 of anything.example."
    assert allowed.refusal("anything.example", 22) == refusal
    assert "is not a host name" in str(allowed.refusal("127.1", 80))


def test_a_refusal_names_the_policy() -> None:
    """9.1.14"""
    allowed = AllowedNetwork.of(("pypi.org", "*.github.com", "example.com:8443"))
    assert allowed.refusal("evil.test", 443) == (
        "The network policy does not allow evil.test:443; it allows pypi.org, *.github.com, example.com:8443."
    )
    assert AllowedNetwork.of(False).refusal("pypi.org", 443) is not None


@pytest.mark.parametrize(
    "given",
    [
        *("pypi.org", b"pypi.org", 1, None, [1], [None]),
        *(["https://pypi.org"], ["pypi.org/simple"], ["10.0.0.1"], ["::1"], ["[::1]:80"], ["*"], ["*.*.com"]),
        *(
            [""],
            ["a b"],
            ["pypi.org:"],
            ["pypi.org:0"],
            ["pypi.org:65536"],
            ["pypi.org:http"],
            ["-a.example"],
        ),
        *(["127.1"], ["a..b"], ["x" * 64 + ".example"], ["user@pypi.org"], ["pypi.org\0"]),
    ],
)
def test_an_invalid_list_of_names_is_refused_when_it_is_set(given: object) -> None:
    """9.1.14"""
    with pytest.raises(InvalidInput, match=r"network|not a host name"):
        parse_network(given)


def test_a_policy_keeps_the_list() -> None:
    """9.1.2, 9.1.14"""
    policy = ExecutionPolicy.in_dir("/work")
    assert policy.with_network(["pypi.org"]).network == ("pypi.org",)
    assert policy.with_network().network is True
    assert policy.with_network([]).network is False
    with pytest.raises(InvalidInput):
        ExecutionPolicy("/work", network=("http://pypi.org",))


def test_names_have_one_form() -> None:
    """9.1.14"""
    assert host_name(" Pypi.ORG. ") == "pypi.org"
    assert parse_address("[::1]") == ip_address("::1")
    assert parse_address("fe80::1%eth0") is None
    assert parse_address("pypi.org") is None
