"""Routes about schedules."""

from typing import Annotated
from uuid import UUID

from fastapi import Path, Response

from everstep.client.execution import now
from everstep.client.schedules import Schedules
from everstep.http_api.auth import CallerDep, acting_scope, acting_user
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.routes.router import ApiDep, load_session, router
from everstep.http_api.schemas.responses import PageResponse, page_response
from everstep.http_api.schemas.schedule_schemas import (
    BackfillResponse,
    BackfillSent,
    NewScheduleSent,
    ScheduleChangesSent,
    ScheduleDetails,
    ScheduleResponse,
)
from everstep.http_api.schemas.text import Cursor, Limit

routes = router("schedules")

ScheduleId = Annotated[UUID, Path(description="The schedule's id.")]


@routes.post("/agent/schedules", status_code=201)
async def create_schedule(
    body: NewScheduleSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ScheduleDetails:
    """Send a message to an agent at times: at an interval, or as a cron expression says."""
    user_id, scope = acting_user(caller, body.user_id), acting_scope(caller, body.user_id)
    if body.session_id is not None:
        await load_session(api, caller, body.session_id)
    created = await _schedules(api, caller).create(key.id("schedule"), scope, user_id, body.settings, now())
    return ScheduleDetails.viewed(created)


@routes.get("/agent/schedules")
async def list_schedules(
    api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[ScheduleResponse]:
    """List schedules, newest first."""
    page = await _schedules(api, caller).list(caller.scope, cursor=cursor, limit=limit)
    return page_response(page, ScheduleResponse.of)


@routes.get("/agent/schedules/{schedule_id}")
async def read_schedule(schedule_id: ScheduleId, api: ApiDep, caller: CallerDep) -> ScheduleDetails:
    """Read a schedule with its next and its last runs."""
    return ScheduleDetails.viewed(await _schedules(api, caller).get(caller.scope, schedule_id))


@routes.patch("/agent/schedules/{schedule_id}")
async def change_schedule(
    schedule_id: ScheduleId, body: ScheduleChangesSent, api: ApiDep, caller: CallerDep
) -> ScheduleDetails:
    """Change, pause or resume a schedule."""
    if body.session_id is not None:
        await load_session(api, caller, body.session_id)
    changed = await _schedules(api, caller).change(caller.scope, schedule_id, body.changes, now())
    return ScheduleDetails.viewed(changed)


@routes.delete("/agent/schedules/{schedule_id}", status_code=204)
async def delete_schedule(schedule_id: ScheduleId, api: ApiDep, caller: CallerDep) -> Response:
    """Delete a schedule; executions that it started stay."""
    await _schedules(api, caller).delete(caller.scope, schedule_id)
    return Response(status_code=204)


@routes.post("/agent/schedules/{schedule_id}/pause")
async def pause_schedule(
    schedule_id: ScheduleId, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ScheduleDetails:
    """Pause a schedule; a run that has begun continues."""
    del key
    paused = await _schedules(api, caller).change(caller.scope, schedule_id, {"is_paused": True}, now())
    return ScheduleDetails.viewed(paused)


@routes.post("/agent/schedules/{schedule_id}/resume")
async def resume_schedule(
    schedule_id: ScheduleId, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ScheduleDetails:
    """Resume a paused schedule."""
    del key
    resumed = await _schedules(api, caller).change(caller.scope, schedule_id, {"is_paused": False}, now())
    return ScheduleDetails.viewed(resumed)


@routes.post("/agent/schedules/{schedule_id}/trigger")
async def trigger_schedule(
    schedule_id: ScheduleId, api: ApiDep, caller: CallerDep, key: KeyDep
) -> ScheduleDetails:
    """Run a schedule now, also if it is paused; `overlap` applies."""
    triggered = await _schedules(api, caller).trigger(caller.scope, schedule_id, key.id("trigger"))
    return ScheduleDetails.viewed(triggered)


@routes.post("/agent/schedules/{schedule_id}/backfill")
async def backfill_schedule(
    schedule_id: ScheduleId, body: BackfillSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> BackfillResponse:
    """Make up for the runs of a period in the past, one after the other.

    A time at which the schedule ran already is not run again.
    """
    del key
    runs = await _schedules(api, caller).backfill(caller.scope, schedule_id, body.start_at, body.end_at)
    return BackfillResponse(runs=runs)


def _schedules(api: Api, caller: Caller) -> Schedules:
    return Schedules(api.client_for(caller), api.schedules)
