"""How many requests are made at once."""

from everstep.agent_domain.fairness.concurrency import Concurrency


def test_a_server_that_is_not_busy_gets_more_requests_at_once_up_to_a_bound() -> None:
    """18.2.17"""
    requests = Concurrency(least=4, most=64)
    assert requests.places == 4
    for _ in range(5_000):
        requests.finished(0.05, at_once=requests.places)
    assert requests.places == 64


def test_a_busy_server_gets_fewer_and_not_fewer_than_the_least() -> None:
    """18.2.17"""
    requests = Concurrency(least=4, most=64, limit=40)
    requests.finished(0.004, at_once=40)
    for _ in range(50):
        requests.finished(0.1, at_once=40)
    assert requests.places == 4


def test_few_requests_at_once_say_nothing_about_more() -> None:
    """18.2.17"""
    requests = Concurrency(least=4, most=64, limit=20)
    for _ in range(1_000):
        requests.finished(0.004, at_once=1)
    assert requests.places == 20


def test_the_time_of_a_request_alone_adapts_to_a_server_that_is_farther_away() -> None:
    """18.2.17"""
    requests = Concurrency(least=4, most=64)
    requests.finished(0.004, at_once=4)
    for _ in range(2_000):
        requests.finished(0.05, at_once=4)
    assert requests.places > 8
