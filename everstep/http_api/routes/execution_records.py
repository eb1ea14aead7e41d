"""Routes about what executions recorded: prompts, their comparison, their export, and their ledgers."""

from typing import Annotated
from uuid import UUID

from fastapi import Path, Query, Response

from everstep.agent_domain.storage.ledger import canonical_json
from everstep.client.compared_executions import compare_executions
from everstep.client.exported_runs import ExportForm, export_run
from everstep.client.ledgers import EARLIEST, LATEST, read_ledger
from everstep.client.prompts import read_prompt
from everstep.client.run_exports import Shape
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Grant
from everstep.http_api.problems import missing_scope
from everstep.http_api.routes.router import ApiDep, ExecutionId, load_execution, router
from everstep.http_api.schemas.comparison_responses import ComparisonResponse
from everstep.http_api.schemas.export_responses import ExportResponse
from everstep.http_api.schemas.ledger_responses import LedgerResponse
from everstep.http_api.schemas.prompt_responses import PromptResponse
from everstep.http_api.schemas.text import Instant, Limit

routes = router("records")

CURSOR_HEADER = "Everstep-Next-Cursor"


class NdjsonResponse(Response):
    """Lines of JSON."""

    media_type = "application/x-ndjson"


OtherId = Annotated[UUID, Path(description="The id of the other execution.")]


@routes.get("/agent/executions/{execution_id}/steps/{number}/prompt")
async def read_step_prompt(
    execution_id: ExecutionId,
    number: Annotated[int, Path(ge=1, le=2**31 - 1, description="The number of the step.")],
    api: ApiDep,
    caller: CallerDep,
    before: Annotated[
        int | None,
        Query(ge=0, le=2**31 - 1, description="Only messages before this index: `first` of a page."),
    ] = None,
    limit: Limit = 50,
) -> PromptResponse:
    """Read what the model read in a step: its messages, the last ones first page by page, and its tools.

    It is built again from what is stored. Instructions are included with the scope `sessions:all`.
    """
    row, _ = await load_execution(api, caller, execution_id)
    prompt = await read_prompt(api.client_for(caller), row.ref, number)
    return PromptResponse.of(number, prompt, before=before, limit=limit, in_full=caller.sees_all)


@routes.get("/agent/executions/{execution_id}/diff/{other_id}", response_model_exclude_unset=True)
async def compare_two_executions(
    execution_id: ExecutionId, other_id: OtherId, api: ApiDep, caller: CallerDep
) -> ComparisonResponse:
    """Compare an execution (`a`) with another one (`b`): settings, steps, calls, decisions, tokens and cost.

    Steps that a fork shares with its origin are the same steps; others are aligned by their calls.
    """
    a, execution = await load_execution(api, caller, execution_id)
    b, _ = await load_execution(api, caller, other_id)
    store = execution.client.store
    return ComparisonResponse.of(await compare_executions(store, a.ref, b.ref, in_full=caller.sees_all))


@routes.get("/agent/executions/{execution_id}/export")
async def export_execution(
    execution_id: ExecutionId,
    api: ApiDep,
    caller: CallerDep,
    form: Annotated[
        ExportForm, Query(alias="as", description="A test, a script or training data.")
    ] = ExportForm.TEST,
    shape: Annotated[Shape, Query(description="The shape of a dataset.")] = Shape.OPENAI,
) -> ExportResponse:
    """Export an execution as a test, as a script for the scripted driver, or as a line of training data.

    The files are those of `everstep export`. They contain prompts and the texts of errors, so the scope
    `sessions:all` is needed. Secrets are replaced by `[redacted]`.
    """
    row, execution = await load_execution(api, caller, execution_id)
    if not caller.sees_all:
        raise missing_scope(
            f"An export needs the scope '{Grant.ALL_SESSIONS}', as it contains prompts and errors",
            Grant.ALL_SESSIONS,
        )
    client = execution.client
    run = await export_run(client.store, row.ref, client.agents, api.redaction)
    return ExportResponse.of(run, form, shape)


@routes.get("/agent/executions/{execution_id}/ledger")
async def read_execution_ledger(
    execution_id: ExecutionId,
    api: ApiDep,
    caller: CallerDep,
    cursor: Annotated[
        str | None, Query(pattern="^[0-9]{1,9}$", description="`next_cursor` of the previous page.")
    ] = None,
    limit: Limit = 50,
) -> LedgerResponse:
    """Read the ledger of an execution: facts and decisions, in a chain of hashes."""
    row, execution = await load_execution(api, caller, execution_id)
    page = await read_ledger(execution.client.store, row, int(cursor or 0), limit)
    return LedgerResponse.of(execution_id, page)


@routes.get("/agent/ledger", response_class=NdjsonResponse)
async def export_ledger(
    api: ApiDep,
    caller: CallerDep,
    since: Annotated[Instant | None, Query(description="Default: the beginning.")] = None,
    until: Annotated[Instant | None, Query(description="Default: now.")] = None,
    cursor: Annotated[
        str | None, Query(max_length=300, description="The header `Everstep-Next-Cursor` of the last page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """Export the ledgers of all executions over a period, one entry on each line, in order of time.

    With `sessions:all` those of all users of the tenant. The header `Everstep-Next-Cursor` continues where
    the lines end, also later: each entry is exported once. Fewer lines than the limit are the last ones so
    far.
    """
    store = api.client_for(caller).store
    page = await store.ledger_of_period(caller.scope, since or EARLIEST, until or LATEST, cursor, limit)
    lines = "".join(f"{canonical_json(entry.to_dict())}\n" for entry in page.entries)
    headers = {CURSOR_HEADER: page.cursor} if page.cursor else {}
    return NdjsonResponse(lines, headers=headers)
