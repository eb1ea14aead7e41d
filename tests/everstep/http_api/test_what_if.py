"""What-ifs over HTTP."""

import pytest

from tests.everstep.http_api.house import MakeCaller, assert_problem


async def test_a_caller_examines_its_own_executions_and_a_service_those_of_the_tenant(
    sign_in: MakeCaller, work: None
) -> None:
    """15.2.7"""
    ann, ben, service = await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")
    sent = [await person.post("/agent/messages", {"content": "Hello"}) for person in (ann, ann, ben)]
    for person, each in zip((ann, ann, ben), sent, strict=True):
        await person.wait_for_status(each["execution_id"], "completed")

    for person, examined in ((ann, 2), (ben, 1), (service, 3)):
        report = await person.post("/agent/what-if", {})
        assert (report["examined"], report["differing"], report["undetermined"]) == (examined, 0, 0)
        assert (report["executions"], report["next_cursor"]) == ([], None)

    no_step = {"criteria": [{"name": "StepsLimit", "params": {"max_steps": 0}}]}
    report = await ann.post("/agent/what-if", no_step | {"limit": 1})
    assert (report["ended_earlier"], report["differing"]) == (1, 1)
    (run,) = report["executions"]
    assert (run["id"], run["parts_at_step"]) == (sent[1]["execution_id"], 0)
    rest = await ann.post("/agent/what-if", no_step | {"cursor": report["next_cursor"]})
    assert [each["id"] for each in rest["executions"]] == [sent[0]["execution_id"]]
    one = no_step | {"execution_id": sent[0]["execution_id"]}
    for person, differing in ((ann, 1), (ben, 0), (service, 1)):
        report = await person.post("/agent/what-if", one)
        assert (report["examined"], report["differing"], report["reasons"]) == (differing, differing, {})
    del work


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"error_policy": "retry_al"}, "did you mean 'retry_all'"),
        ({"criteria": [{"name": "RetryLimt"}]}, "did you mean 'RetryLimit'"),
        ({"without_criteria": ["StepLimit"]}, "did you mean 'StepsLimit'"),
        ({"prices": {"small": {"input": 1}}}, "input and output"),
        ({"budget_steps": 0}, "budget_steps"),
        ({"limit": 5000}, "limit"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"max_step": 3}, "did you mean 'max_steps'"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "since must be earlier"),
    ],
    ids=str,
)
async def test_bad_input_is_refused(sign_in: MakeCaller, body: dict[str, object], words: str) -> None:
    """15.2.5"""
    ann = await sign_in("ann")
    assert_problem(await ann.http.post("/agent/what-if", json=body), 422, words)
