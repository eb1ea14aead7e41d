"""Delays, signatures and secrets of webhooks."""

from datetime import UTC, datetime, timedelta

import pytest

from everstep.agent_domain.storage.webhooks import (
    LONGEST_DELAY,
    MAX_ATTEMPTS,
    AttemptOutcome,
    WebhookSecrets,
    WebhookTaken,
    retry_delay,
    webhook_signature,
)

NOW = datetime(2026, 1, 16, tzinfo=UTC)


def test_delays_triple_and_end_after_about_a_day() -> None:
    """18.6.6"""
    delays = [retry_delay(attempts, 0.5) for attempts in range(1, MAX_ATTEMPTS)]
    known = [delay for delay in delays if delay is not None]

    assert [delay.total_seconds() for delay in known[:3]] == [10, 30, 90]
    assert known[-1] == LONGEST_DELAY
    assert timedelta(hours=24) < sum(known, timedelta()) < timedelta(hours=30)
    assert retry_delay(MAX_ATTEMPTS, 0.5) is None


def test_a_delay_varies() -> None:
    """18.6.6"""
    assert [retry_delay(1, chance) for chance in (0, 1)] == [timedelta(seconds=8), timedelta(seconds=12)]


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """18.6.4: the example of its specification."""
    signature = webhook_signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    with pytest.raises(ValueError, match="base64"):
        webhook_signature("whsec_?", "evt_1", 1, b"")


def test_the_previous_secret_signs_for_a_while() -> None:
    """18.6.4"""
    rotated = WebhookSecrets("new", "old", NOW)

    assert rotated.signing(NOW - timedelta(seconds=1)) == ("new", "old")
    assert rotated.signing(NOW) == ("new",)
    assert WebhookSecrets("new").signing(NOW) == ("new",)


def test_a_receiver_that_is_gone_is_known_by_its_status() -> None:
    """18.6.9"""
    assert AttemptOutcome(410, "gone").is_gone
    assert not AttemptOutcome(404, "not found").is_gone
    assert "https://a.example" in str(WebhookTaken("https://a.example"))
