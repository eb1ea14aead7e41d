import pytest

from everstep.agent_domain.nearest import MAX_LENGTH, did_you_mean, nearest

KEYS = ["http_port", "http_host", "gateway_port", "agents", "preset", "presets"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("http_prot", "http_port"),
        ("HTTP-Port", "http_port"),
        ("http port", "http_port"),
        ("httpport", "http_port"),
        ("gateway_prt", "gateway_port"),
        ("agent", "agents"),
        ("preset", "preset"),
        ("gat", "gateway_port"),
        ("ga", None),
        ("htt", None),
        ("colour", None),
        ("", None),
        ("\x1b[2J", None),
    ],
)
def test_a_name_is_near_in_spite_of_typos_case_and_separators(name: str, meant: str | None) -> None:
    """1.4.1"""
    assert nearest(name, KEYS) == meant
    assert did_you_mean(name, KEYS) == (f"; did you mean '{meant}'?" if meant else "")


def test_names_that_are_too_long_for_a_typo_are_not_compared() -> None:
    """1.4.1"""
    long = "a" * MAX_LENGTH

    assert nearest(long, [f"{long}b", long]) == long
    assert nearest(f"{long}b", [long]) is None


def test_no_name_is_near_where_none_is_known() -> None:
    """1.4.1"""
    assert did_you_mean("agents", []) == ""
