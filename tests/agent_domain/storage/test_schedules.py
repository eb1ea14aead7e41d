"""When schedules run: cadences and cron expressions."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.schedules import (
    Cadence,
    ScheduleSettings,
    cadence_data,
    cadence_from,
    require_cron,
)

AT = datetime(2026, 1, 16, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "cron",
    ["* * * * *", "0 9 * * mon-fri", "*/5 0-6/2 1,15 jan,JUL sun", "59 23 31 12 7", "5-5 * * * *", "@daily"],
)
def test_a_cron_expression_has_five_fields(cron: str) -> None:
    """18.7.1"""
    assert require_cron(f"  {cron} ") == cron


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("", "five fields"),
        ("* * * * * *", "five fields"),
        ("@reboot", "five fields"),
        ("60 * * * *", "'60' is not a valid minute; write 0 to 59"),
        ("* * 0 * *", "'0' is not a valid day of the month"),
        ("* * * 13 *", "'13' is not a valid month"),
        ("* * * mon *", "'mon' is not a valid month"),
        ("1-x * * * *", "'x' is not a valid minute"),
        ("a b c d e", "'a' is not a valid minute"),
        ("1--2 * * * *", "'1--2' is not a valid minute"),
        ("٣ * * * *", "is not a valid minute"),
        ("TZ=UTC * * * *", "'TZ=UTC' is not a valid minute"),
        ("5-1 * * * *", "ends before it begins"),
        ("*/0 * * * *", "the step"),
        (f"{'1,' * 200}1 * * * *", "five fields"),
    ],
)
def test_an_invalid_cron_expression_names_its_field(cron: str, words: str) -> None:
    """18.7.8"""
    with pytest.raises(InvalidInput, match=words):
        require_cron(cron)


@pytest.mark.parametrize(
    ("cron", "day"),
    [
        ("0 9 30 2 *", 30),
        ("0 9 31 feb,4-6/2,9,11 fri", 31),
        ("0 9 31-31,30/5 FEB *", 30),
        ("0 9 29 2 *", None),
        ("0 9 */30 2 *", None),
        ("0 9 31 */2 *", None),
        ("0 9 31 5/1 *", None),
        ("@yearly", None),
    ],
)
def test_an_expression_with_a_day_that_its_months_do_not_have_is_refused(cron: str, day: int | None) -> None:
    """18.7.8: and a stored one is still read."""
    cadence = cadence_from(cadence_data(Cadence(cron=cron)))
    if day is None:
        assert cadence.require_future(AT)
    else:
        with pytest.raises(InvalidInput, match=f"has the day {day}, so it would never run"):
            cadence.require_future(AT)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either"),
        ({"interval_seconds": 5, "cron": "* * * * *"}, "either"),
        ({"interval_seconds": 0}, "send 1 to"),
        ({"interval_seconds": 5, "jitter_seconds": -1}, "jitter_seconds"),
        ({"interval_seconds": 5, "start_at": AT, "end_at": AT}, "not after"),
    ],
)
def test_a_cadence_without_sense_is_refused(given: dict[str, Any], words: str) -> None:
    """18.7.8"""
    with pytest.raises(InvalidInput, match=words):
        Cadence(**given)


def test_a_cadence_survives_storage_and_ends() -> None:
    cadence = Cadence(cron="0 9 * * *", timezone="Europe/Berlin", end_at=AT)

    assert cadence_from(cadence_data(cadence)) == cadence
    assert cadence.require_future(AT - timedelta(seconds=1)) is cadence
    with pytest.raises(InvalidInput, match="in the past"):
        cadence.require_future(AT)
    with pytest.raises(InvalidInput, match="content is empty"):
        ScheduleSettings("clerk", " ", cadence)
