"""Ids are derived from their subjects."""

from uuid import UUID

from hypothesis import given, strategies as st

from everstep.agent_domain.ids import call_id, envelope_id, step_id, subagent_id

EXECUTION = UUID("6f6d5f3c-6f3a-4d0e-9a53-0c6b9a6c0d11")
OTHER = UUID("6f6d5f3c-6f3a-4d0e-9a53-0c6b9a6c0d12")

numbers = st.integers(1, 10_000)


@given(st.uuids(), numbers, st.integers(0, 100))
def test_every_process_computes_the_same_id(execution: UUID, number: int, index: int) -> None:
    """1.1.2: a second attempt's writes find those of the first."""
    assert step_id(execution, number) == step_id(execution, number)
    assert call_id(execution, number, index) == call_id(execution, number, index)
    assert envelope_id(execution, f"step/{number}") == envelope_id(execution, f"step/{number}")


def test_ids_outlive_a_release() -> None:
    """1.1.2: stored rows are found under them."""
    assert step_id(EXECUTION, 1) == UUID("5e4440c8-3a93-50e9-923e-f1c507a7b383")
    assert call_id(EXECUTION, 1, 0) == "call_9ece42d98de4"
    assert subagent_id(EXECUTION, "c1") == UUID("487f311d-0680-5011-84a5-ba4bf151d614")
    assert envelope_id(EXECUTION, "step/1/completed") == UUID("66d83ade-1a06-51d8-863c-b1547995e44f")


@given(st.lists(st.tuples(numbers, st.integers(0, 50)), unique=True, max_size=30))
def test_different_things_have_different_ids(places: list[tuple[int, int]]) -> None:
    """1.1.3: every call of every step of every execution has a unique key."""
    executions = (EXECUTION, OTHER)
    calls = {call_id(e, number, index) for e in executions for number, index in places}
    steps = {step_id(e, number) for e in executions for number, _ in places}
    envelopes = {envelope_id(e, f"step/{number}") for e in executions for number, _ in places}

    assert len(calls) == 2 * len(places)
    assert len(steps) == 2 * len({number for number, _ in places})
    assert steps.isdisjoint(envelopes)


def test_a_call_id_is_valid_for_every_provider() -> None:
    """5.4.1: letters, digits, `_` and `-`, at most 40 characters."""
    made = call_id(EXECUTION, 1000, 63)

    assert made.replace("_", "").isalnum()
    assert made.isascii()
    assert len(made) <= 40
