"""Schedules over HTTP, on a Temporal server and PostgreSQL."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from temporalio.client import (
    ScheduleActionExecutionStartWorkflow,
    ScheduleHandle,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.client.schedule_entry import ScheduleEntry
from everstep.client.schedules import ID_PREFIX, Schedules, schedule_name
from everstep.store.schedules import PostgresSchedules
from everstep.workflows.scheduled_message import SCHEDULED_MESSAGE, ScheduledRun
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, assert_problem
from tests.workflows.harness import eventually

HOURLY = {"agent": "clerk", "content": "Look around", "interval_seconds": 3600}
PATH = "/agent/schedules"


def in_future(**given: float) -> str:
    return (datetime.now(UTC) + timedelta(**given)).isoformat()


async def first_run(person: ApiCaller, schedule_id: str) -> Any:
    """The execution of the first run, once it has one."""
    found: dict[str, Any] = {}

    async def has_run() -> bool:
        runs = (await person.get(f"{PATH}/{schedule_id}"))["recent_runs"]
        if not runs or runs[-1]["execution_id"] is None:
            return False
        answer = await person.http.get(f"/agent/executions/{runs[-1]['execution_id']}")
        found["execution"] = answer.json()
        return answer.status_code == 200

    await eventually(has_run)
    return found["execution"]


async def test_a_schedule_sends_its_message_as_its_user(sign_in: MakeCaller, work: None) -> None:
    """18.7.1, 18.7.2: at its times, in a new session for each run."""
    ann, ben, boss = await sign_in("ann"), await sign_in("ben"), await sign_in("boss", "sessions:all")
    schedule = await ann.post(PATH, {**HOURLY, "interval_seconds": 1, "end_at": in_future(seconds=4)})
    run = await first_run(ann, schedule["id"])

    assert (schedule["user_id"], schedule["overlap"], schedule["is_applied"]) == ("ann", "skip", True)
    assert run["user_id"] == "ann"
    ended = await ann.wait_for_status(run["id"], "completed")
    assert ended["output"]["response"] == "You said: Look around"
    session = await ann.get(f"/agent/sessions/{run['session_id']}")
    assert session["title"] == "Look around"
    # Others neither see it nor change it.
    assert [each["id"] for each in (await boss.get(PATH))["items"]] == [schedule["id"]]
    assert (await ben.get(PATH))["items"] == []
    assert_problem(await ben.http.get(f"{PATH}/{schedule['id']}"), 404)
    assert_problem(await ben.send_post(f"{PATH}/{schedule['id']}/trigger"), 404)
    assert (await ben.http.delete(f"{PATH}/{schedule['id']}")).status_code == 404
    await ann.http.delete(f"{PATH}/{schedule['id']}")


async def test_runs_of_schedules_are_dispatched_fairly(ann: ApiCaller, work: None) -> None:
    """18.2.1: with the key of the tenant and the user, as executions are."""
    schedule = await ann.post(PATH, {**HOURLY, "paused": True})
    await ann.post(f"{PATH}/{schedule['id']}/trigger")
    await first_run(ann, schedule["id"])
    temporal = ann.api_setup.sessions.client.temporal
    described = await temporal.get_schedule_handle(schedule_name(UUID(schedule["id"]))).describe()
    (run,) = described.info.recent_actions
    assert isinstance(run.action, ScheduleActionExecutionStartWorkflow)
    history = await temporal.get_workflow_handle(run.action.workflow_id).fetch_history()
    keys = [
        event.activity_task_scheduled_event_attributes.priority.fairness_key
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    started = history.events[0].workflow_execution_started_event_attributes.priority.fairness_key
    assert {started, *keys} == {fairness_key(ann.api_setup.tenant, "ann")}
    assert keys
    await ann.http.delete(f"{PATH}/{schedule['id']}")


async def test_a_schedule_is_changed_paused_triggered_and_deleted(ann: ApiCaller, work: None) -> None:
    """18.7.3, 18.7.5, 18.7.9: Temporal's schedule follows the stored one, and is gone with it."""
    session = await ann.create_session(title="Reports")
    created = await ann.post(PATH, {**HOURLY, "session_id": session, "paused": True})
    path = f"{PATH}/{created['id']}"
    assert (created["paused"], created["session_id"]) == (True, session)

    changed = (
        await ann.http.patch(path, json={"cron": "30 8 * * mon-fri", "timezone": "Europe/Berlin"})
    ).json()
    assert (changed["cron"], changed["interval_seconds"]) == ("30 8 * * mon-fri", None)
    assert len(changed["next_runs"]) > 0
    assert (await ann.post(f"{path}/resume"))["paused"] is False
    assert (await ann.post(f"{path}/pause"))["paused"] is True

    temporal = await as_of_an_earlier_release(ann, changed)
    await ann.post(f"{path}/trigger")
    run = await first_run(ann, created["id"])
    assert run["session_id"] == session

    async def is_renewed() -> bool:
        return (await temporal.describe()).schedule.spec.time_zone_name == "UTC"

    await eventually(is_renewed)
    messages = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
    assert messages[-1]["metadata"] == {"schedule_id": created["id"]}

    assert (await ann.http.delete(path)).status_code == 204
    assert_problem(await ann.http.get(path), 404)
    with pytest.raises(RPCError) as raised:
        await temporal.describe()
    assert raised.value.status is RPCStatusCode.NOT_FOUND


async def test_a_backfill_runs_each_time_once(ann: ApiCaller, work: None) -> None:
    """18.7.4, 18.7.9: also if it is repeated, and at a time that clocks showed twice."""
    new_york = {"cron": "30 1 * * *", "timezone": "America/New_York", "interval_seconds": None}
    schedule = await ann.post(PATH, {**HOURLY, **new_york, "jitter_seconds": 1, "paused": True})
    period = {"start_at": "2025-11-02T00:00:00-04:00", "end_at": "2025-11-03T12:00:00-05:00"}
    path = f"{PATH}/{schedule['id']}"
    times = ["2025-11-03T06:30:00", "2025-11-02T05:30:00"]

    assert await ann.post(f"{path}/backfill", period) == {"runs": 2}

    async def is_done() -> bool:
        runs = (await ann.get(path))["recent_runs"]
        return len(runs) == 2 and all(run["execution_id"] for run in runs)

    await eventually(is_done)
    assert await ann.post(f"{path}/backfill", period) == {"runs": 0}
    # As with a time of the period that has no execution, so that Temporal starts all workflows again.
    longer = {**period, "start_at": "2025-11-01T00:00:00-04:00"}
    assert await ann.post(f"{path}/backfill", longer) == {"runs": 1}

    async def is_repeated() -> bool:
        runs = (await ann.get(path))["recent_runs"]
        return len(runs) == 3 and all(run["execution_id"] for run in runs)

    await eventually(is_repeated)
    runs = (await ann.get(path))["recent_runs"]
    assert sorted(run["scheduled_at"][:19] for run in runs) == ["2025-11-01T05:30:00", *times[::-1]]
    executions = (await ann.get("/agent/executions"))["items"]
    assert {each["id"] for each in executions} == {run["execution_id"] for run in runs}
    await ann.http.delete(path)


async def test_a_backfill_of_more_than_a_thousand_times_is_refused(ann: ApiCaller) -> None:
    """18.7.10: Temporal lists a thousand of them only, however many there are."""
    schedule = await ann.post(PATH, {**HOURLY, "interval_seconds": 1, "paused": True})
    path = f"{PATH}/{schedule['id']}"
    for seconds in (1000, 9 * 365 * 86_400):
        end = datetime(2026, 1, 1, tzinfo=UTC)
        period = {
            "start_at": (end - timedelta(seconds=seconds)).isoformat(),
            "end_at": end.isoformat(),
        }
        assert_problem(await ann.send_post(f"{path}/backfill", period), 422, "more than 1000 times")
    ages = {"start_at": "2001-01-01T00:00:00Z", "end_at": "2001-01-01T00:00:05Z"}
    assert_problem(await ann.send_post(f"{path}/backfill", ages), 422, "choose a later start_at")
    temporal = ann.api_setup.sessions.client.temporal
    described = await temporal.get_schedule_handle(schedule_name(UUID(schedule["id"]))).describe()
    assert described.info.num_actions == 0
    await ann.http.delete(path)


CHANGES: Mapping[str, tuple[str, str, str, str, int]] = {
    "a time that Berlin skips": ("Europe/Berlin", "30 2 * * *", "2025-03-30T00:00Z", "2025-03-30T22:00Z", 0),
    # 2:20, 2:40, and after an hour 3:00, 3:20, 3:40 and 4:00.
    "an hour that Berlin repeats": (
        "Europe/Berlin",
        "*/20 * * * *",
        "2025-10-26T00:10Z",
        "2025-10-26T03:10Z",
        6,
    ),
    "half an hour that Lord Howe skips": (
        "Australia/Lord_Howe",
        "15,45 2 * * *",
        "2025-10-04T00:00Z",
        "2025-10-05T00:00Z",
        1,
    ),
}


async def as_of_an_earlier_release(person: ApiCaller, schedule: Mapping[str, Any]) -> ScheduleHandle:
    """Give Temporal the cron expression itself, as earlier releases did."""
    temporal = person.api_setup.sessions.client.temporal
    handle = temporal.get_schedule_handle(schedule_name(UUID(schedule["id"])))

    def older(found: ScheduleUpdateInput) -> ScheduleUpdate:
        found.description.schedule.spec = ScheduleSpec(
            cron_expressions=[schedule["cron"]], time_zone_name=schedule["timezone"]
        )
        found.description.schedule.state.note = "revision 1"
        return ScheduleUpdate(found.description.schedule)

    await handle.update(older)
    return handle


async def test_a_time_that_clocks_skip_is_left_out_and_one_that_they_repeat_is_run_once(
    ann: ApiCaller,
) -> None:
    """18.7.9: also with a schedule of an earlier release."""
    for name, (zone, cron, begin, end, expected) in CHANGES.items():
        given = {"cron": cron, "timezone": zone, "interval_seconds": None, "paused": True}
        schedule = await ann.post(PATH, {**HOURLY, **given})
        await as_of_an_earlier_release(ann, schedule)
        path, period = f"{PATH}/{schedule['id']}", {"start_at": begin, "end_at": end}
        assert await ann.post(f"{path}/backfill", period) == {"runs": expected}, name
        await ann.http.delete(path)


async def test_times_are_not_renewed_while_a_run_is_about_to_begin(
    ann: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.7.9: Temporal would drop the run."""
    daily = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "interval_seconds": None}
    schedule = await ann.post(PATH, {**HOURLY, **daily})
    temporal = await as_of_an_earlier_release(ann, schedule)
    monkeypatch.setattr("everstep.client.schedule_specs.MARGIN", timedelta(days=2))
    path = f"{PATH}/{schedule['id']}"
    period = {"start_at": "2025-03-30T00:00Z", "end_at": "2025-03-30T22:00Z"}
    assert_problem(await ann.send_post(f"{path}/backfill", period), 409, "about to begin; try again after it")
    assert (await temporal.describe()).schedule.state.note == "revision 1"
    await ann.http.delete(path)


async def test_a_day_of_the_month_and_a_day_of_the_week_have_to_match_both(ann: ApiCaller) -> None:
    """18.7.12: also the last day that a month can have is accepted."""
    leap_day = await ann.post(PATH, {**HOURLY, "interval_seconds": None, "cron": "0 9 29 2 *"})
    friday = await ann.post(PATH, {**HOURLY, "interval_seconds": None, "cron": "0 9 13 * fri"})
    runs = [datetime.fromisoformat(each) for each in friday["next_runs"]]
    assert leap_day["next_runs"]
    assert {(each.day, each.weekday()) for each in runs} == {(13, 4)}
    for each in (leap_day, friday):
        await ann.http.delete(f"{PATH}/{each['id']}")


async def test_a_run_that_is_refused_says_why(ann: ApiCaller, work: None) -> None:
    """18.7.6: the session waits for an answer, which the message must not be; then it is deleted."""
    session = await ann.create_session()
    asked = await ann.post_message(session, "ask", agent="clerk")
    request = await ann.wait_for_request(asked["execution_id"])
    schedule = await ann.post(PATH, {**HOURLY, "session_id": session, "paused": True})
    path = f"{PATH}/{schedule['id']}"

    async def says(words: str) -> None:
        async def has_error() -> bool:
            return words in ((await ann.get(path))["last_error"] or "")

        await eventually(has_error)

    await ann.post(f"{path}/trigger")
    await says("waits for the answer to a question")
    (refused,) = (await ann.get(path))["recent_runs"]
    assert refused["execution_id"] is None
    assert (await ann.get(f"/agent/executions/{asked['execution_id']}/requests"))["items"][0][
        "id"
    ] == request["id"]

    await ann.post(f"/agent/executions/{asked['execution_id']}/cancel")
    await ann.wait_for_status(asked["execution_id"], "cancelled")
    assert (await ann.http.delete(f"/agent/sessions/{session}")).status_code == 204
    await ann.post(f"{path}/trigger")
    await says("no session")
    await ann.http.delete(path)


async def test_the_next_run_cancels_the_previous_one_if_asked_to(ann: ApiCaller, work: None) -> None:
    """18.7.7"""
    schedule = await ann.post(PATH, {**HOURLY, "content": "wonder", "overlap": "cancel", "paused": True})
    path = f"{PATH}/{schedule['id']}"
    await ann.post(f"{path}/trigger")
    first = await first_run(ann, schedule["id"])
    await ann.wait_for_status(first["id"], "paused")
    await ann.post(f"{path}/trigger")

    cancelled = await ann.wait_for_status(first["id"], "cancelled")
    assert cancelled["id"] == first["id"]
    await ann.http.delete(path)


async def test_a_trigger_that_is_repeated_after_a_lost_answer_runs_the_schedule_once(
    api_setup: ApiSetup, ann: ApiCaller, work: None
) -> None:
    """18.7.4: as after the loss of the process between Temporal's answer and its own."""
    schedule = await ann.post(PATH, {**HOURLY, "overlap": "allow", "paused": True})
    schedules = Schedules(api_setup.sessions.client, PostgresSchedules(api_setup.keys.engine))
    scope, schedule_id = Scope(api_setup.tenant, "ann"), UUID(schedule["id"])
    one, other = uuid4(), uuid4()
    # Temporal names a run by its second.
    await schedules.trigger(scope, schedule_id, one)
    first = await first_run(ann, schedule["id"])
    await ann.wait_for_status(first["id"], "completed")
    for trigger_id in (one, other):
        await schedules.trigger(scope, schedule_id, trigger_id)

    handle = schedules.temporal.get_schedule_handle(schedule_name(schedule_id))

    async def has_run_again() -> bool:
        return len((await handle.describe()).info.recent_actions) > 1

    await eventually(has_run_again)
    assert len((await handle.describe()).info.recent_actions) == 2
    await ann.http.delete(f"{PATH}/{schedule_id}")


async def test_a_schedule_that_temporal_does_not_have_is_repaired(
    api_setup: ApiSetup, ann: ApiCaller
) -> None:
    """18.7.5: as after the loss of the process that stored it."""
    schedule = await ann.post(PATH, {**HOURLY, "paused": True})
    store, client = PostgresSchedules(api_setup.keys.engine), api_setup.sessions.client
    temporal = client.temporal.get_schedule_handle(schedule_name(UUID(schedule["id"])))
    await temporal.delete()
    row = await store.schedule_to_run(UUID(schedule["id"]))
    assert row is not None
    assert await store.change_schedule(row, row.settings)

    assert not (await ann.get(f"{PATH}/{schedule['id']}"))["is_applied"]
    unapplied = [each.id for each in await store.unapplied_schedules(client.task_queue, 0)]
    assert unapplied == [row.id]
    (changed,) = await store.unapplied_schedules(client.task_queue, 0)
    await Schedules(client, store).apply(changed)

    assert (await temporal.describe()).schedule.state.paused
    assert (await ann.get(f"{PATH}/{schedule['id']}"))["is_applied"]
    await ann.http.delete(f"{PATH}/{schedule['id']}")


async def test_schedules_that_temporal_lost_are_repaired_after_a_restore(
    api_setup: ApiSetup, ann: ApiCaller
) -> None:
    """18.7.5: one that is missing in the database of Temporal, and one that is older there."""
    lost, older, well = [await ann.post(PATH, {**HOURLY, "paused": True}) for _ in range(3)]
    store, client = PostgresSchedules(api_setup.keys.engine), api_setup.sessions.client
    handles = {
        each["id"]: client.temporal.get_schedule_handle(schedule_name(UUID(each["id"])))
        for each in (lost, older, well)
    }
    await ann.http.patch(f"{PATH}/{older['id']}", json={"paused": False})
    before = await store.schedule_to_run(UUID(older["id"]))
    assert before is not None
    schedules = Schedules(client, store)
    await schedules.apply(replace(before, revision=1, settings=replace(before.settings, is_paused=True)))
    await handles[lost["id"]].delete()

    assert await schedules.reconcile() == 0
    assert await schedules.reconcile(thorough=True) == 2
    assert await schedules.reconcile(thorough=True) == 0
    assert (await handles[lost["id"]].describe()).schedule.state.paused
    assert not (await handles[older["id"]].describe()).schedule.state.paused
    for each in (lost, older, well):
        await ann.http.delete(f"{PATH}/{each['id']}")


async def test_a_schedule_that_temporal_refuses_says_so_and_holds_up_no_other(
    api_setup: ApiSetup, ann: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.7.11: such as one with a time zone that only the newer tables of this process have."""
    monkeypatch.setattr("everstep.client.schedules.require_timezone", str)
    monkeypatch.setattr("everstep.client.schedules.GRACE_SECONDS", 0)
    daily = {**HOURLY, "interval_seconds": None, "cron": "@daily", "paused": True}
    refused = await ann.post(PATH, {**daily, "timezone": "Mars/Olympus"})
    assert not refused["is_applied"]
    assert refused["last_error"].startswith("Temporal does not accept the schedule")
    store, client = PostgresSchedules(api_setup.keys.engine), api_setup.sessions.client
    other = await ann.post(PATH, daily)
    row = await store.schedule_to_run(UUID(other["id"]))
    assert row is not None
    assert await store.change_schedule(row, row.settings)

    assert [each.id for each in await store.unapplied_schedules(client.task_queue, 0)] == [row.id]
    assert await Schedules(client, store).reconcile(thorough=True) == 1
    assert (await ann.get(f"{PATH}/{other['id']}"))["is_applied"]
    repaired = (await ann.http.patch(f"{PATH}/{refused['id']}", json={"timezone": "UTC"})).json()
    assert (repaired["is_applied"], repaired["last_error"]) == (True, None)
    for each in (refused, other):
        await ann.http.delete(f"{PATH}/{each['id']}")


INVALID: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no time": ({"interval_seconds": None}, "either interval_seconds or cron"),
    "two kinds of times": ({"cron": "* * * * *"}, "either interval_seconds or cron"),
    "an interval of zero": ({"interval_seconds": 0}, "interval_seconds"),
    "an interval of ages": ({"interval_seconds": 10**9}, "interval_seconds"),
    "four fields": ({"interval_seconds": None, "cron": "* * * *"}, "five fields"),
    "an hour that does not exist": (
        {"interval_seconds": None, "cron": "0 25 * * *"},
        "'25' is not a valid hour",
    ),
    "a word": (
        {"interval_seconds": None, "cron": "0 9 * * someday"},
        "'someday' is not a valid day of the week",
    ),
    "a range backwards": ({"interval_seconds": None, "cron": "0 9-5 * * *"}, "ends before it begins"),
    "a day that does not exist": (
        {"interval_seconds": None, "cron": "0 9 31,30 feb *"},
        "no month of 'feb' has the day 30",
    ),
    "a step of zero": ({"interval_seconds": None, "cron": "*/0 * * * *"}, "the step"),
    "an unknown zone": ({"timezone": "Mars/Olympus"}, "timezone 'Mars/Olympus' is unknown"),
    "a zone that is a path": ({"timezone": "../../etc/passwd"}, "is unknown"),
    "an unknown agent": ({"agent": "nobody"}, "No agent named 'nobody'"),
    "an end in the past": ({"end_at": "2020-01-01T00:00:00Z"}, "end_at is in the past"),
    "an end before the start": (
        {"start_at": "2999-01-02T00:00:00Z", "end_at": "2999-01-01T00:00:00Z"},
        "end_at is not after start_at",
    ),
    "no content": ({"content": "  "}, "content is empty"),
    "a negative jitter": ({"jitter_seconds": -1}, "jitter_seconds"),
    "a start without a time zone": (
        {"start_at": "2030-01-01T00:00:00"},
        "body.start_at: the time has no time zone; send one such as 2026-01-16T10:05:00Z",
    ),
    "a start that is no time": (
        {"start_at": "tomorrow"},
        "body.start_at: it is not a time; send one such as",
    ),
    "an unknown overlap": ({"overlap": "explode"}, "overlap"),
    "an unknown field": ({"every": 5}, "every"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_schedule_is_refused(ann: ApiCaller, name: str) -> None:
    """18.7.8: in one sentence, and nothing is stored."""
    changes, words = INVALID[name]
    assert_problem(await ann.send_post(PATH, {**HOURLY, **changes}), 422, words)
    assert (await ann.get(PATH))["items"] == []


async def test_a_stray_run_learns_nothing_about_another_execution_and_does_not_cancel_it(
    ann: ApiCaller, api_setup: ApiSetup, work: None
) -> None:
    """1.3.4"""
    asking = await ann.post("/agent/executions", {"agent": "clerk", "content": "ask"})
    await ann.wait_for_status(asking["id"], "paused")
    ref = ExecutionRef(UUID(asking["id"]), api_setup.tenant)
    client = api_setup.sessions.client
    stray = ScheduledRun(uuid4(), ref)
    name = f"{ID_PREFIX}{stray.schedule_id}-2026-01-16T10:05:00Z"
    run = await client.temporal.start_workflow(
        SCHEDULED_MESSAGE, stray, id=name, task_queue=client.task_queue, result_type=str
    )
    # A run of this execution would wait for its end.
    assert await run.result() == asking["id"]
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_id=name)
    schedules = Schedules(client, PostgresSchedules(api_setup.keys.engine))
    await environment.run(ScheduleEntry(api_setup.sessions, schedules).cancel, ref)
    assert not await client.store.sent_commands(ref)
    assert (await ann.get(f"/agent/executions/{asking['id']}"))["status"] == "paused"


async def test_a_user_has_a_limited_number_of_schedules(
    ann: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.7.8"""
    monkeypatch.setattr("everstep.store.schedules.MAX_SCHEDULES", 0)
    refused = assert_problem(await ann.send_post(PATH, HOURLY), 409, "delete one first")
    assert refused["title"] == "The schedule does not accept this now"


async def test_a_schedule_is_for_the_users_own_sessions(sign_in: MakeCaller) -> None:
    """18.7.2"""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    session = await ann.create_session()
    assert_problem(await ben.send_post(PATH, {**HOURLY, "session_id": session}), 404)
    assert_problem(await ben.send_post(PATH, {**HOURLY, "user_id": "ann"}), 403)
    assert_problem(await ann.http.get(f"{PATH}/{uuid4()}"), 404)
    key = str(uuid4())
    first, again = [(await ann.post(PATH, {**HOURLY, "paused": True}, key=key))["id"] for _ in range(2)]
    assert first == again
    assert_problem(
        await ann.send_post(
            f"{PATH}/{first}/backfill", {"start_at": in_future(days=1), "end_at": in_future(days=2)}
        ),
        422,
        "in the past",
    )
    await ann.http.delete(f"{PATH}/{first}")
