"""Read-only queries of PostgreSQL."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Row,
    Select,
    Table,
    Text,
    Uuid,
    and_,
    case,
    cast,
    column,
    func,
    literal_column,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.calls import InnerReply
from everstep.agent_domain.storage.commands import CommandKind, SentCommand
from everstep.agent_domain.storage.compactions import ContinuedInput
from everstep.agent_domain.storage.executions import ExecutionRow, Page
from everstep.agent_domain.storage.metadata_changes import MetadataHistory
from everstep.agent_domain.storage.requests import RequestRow, RequestState
from everstep.agent_domain.storage.steps import StepInput, StepRow
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    call_statements,
    command_statements,
    execution_statements,
    rows,
    step_statements,
    transcript_statements,
    transcripts,
)
from everstep.store.cost_statements import TREE_COST
from everstep.store.cursors import Cursor, page_size
from everstep.store.errors import error_translation
from everstep.store.parameters import execution_key
from everstep.store.place_statements import QUEUE, QUEUE_POSITIONS
from everstep.store.replica import Replica
from everstep.store.tables import commands, envelopes, executions, requests, tool_calls
from everstep.store.transaction import BEGIN_SNAPSHOT, QueryResult, Transaction, transaction

T = TypeVar("T")

# Large columns, which only a few readers need.
_LARGE_COLUMNS = {"agent_config", "input", "plan", "listed", "outcome"}
_NOTES: ColumnElement[Any] = literal_column("""(
    SELECT json_build_object('values', coalesce(json_object_agg(key, value) FILTER (WHERE is_set), '{}'),
                             'removed', coalesce(json_agg(key) FILTER (WHERE NOT is_set), '[]'))
      FROM (SELECT DISTINCT ON (key) key, value, is_set
              FROM agent_transcript AS noted,
                   LATERAL (SELECT key, value, true AS is_set FROM json_each(noted.content -> 'values')
                         UNION ALL
                            SELECT value, CAST(NULL AS json), false
                              FROM json_array_elements_text(noted.content -> 'removed')) AS entry
             WHERE noted.execution_id = agent_executions.id AND noted.role = 'note'
             ORDER BY key, step DESC, idx DESC, is_set DESC) AS latest
    )""")
"""All notes of an execution, merged in SQL. A task list that is rewritten in each of a thousand steps is read
once, and a page has many executions."""

ROW = [*(column for column in executions.c if column.name not in _LARGE_COLUMNS), _NOTES.label("notes")]

# Only for single rows: the columns that they are extracted from are large.
_REQUEST = executions.c.input["request"].label("request")
DEFINITION_HASH = executions.c.agent_config["definition_hash"].as_string().label("definition_hash")
_CANCELS = select(commands.c.sent_by).where(
    commands.c.execution_id == executions.c.id, commands.c.kind == str(CommandKind.CANCEL)
)
# Read for cancelled executions only.
CANCELLED_BY = case(
    (
        executions.c.status == str(ExecutionStatus.CANCELLED),
        _CANCELS.order_by(commands.c.position).limit(1).scalar_subquery(),
    )
).label("cancelled_by")


_earlier = executions.alias("earlier")
_QUEUE_PLACE = ("queue_rank", "created_at", "id")
# Read for executions that wait for their turn only.
AHEAD = case(
    (
        and_(executions.c.status == str(ExecutionStatus.PENDING), executions.c.released_at.is_(None)),
        select(func.count())
        .select_from(_earlier)
        .where(
            _earlier.c.session_id == executions.c.session_id,
            _earlier.c.parent_execution_id.is_(None),
            _earlier.c.status.in_([str(status) for status in ExecutionStatus if not status.is_terminal]),
            or_(
                _earlier.c.released_at.is_not(None),
                tuple_(*(_earlier.c[name] for name in _QUEUE_PLACE))
                < tuple_(*(executions.c[name] for name in _QUEUE_PLACE)),
            ),
        )
        .scalar_subquery(),
    )
).label("ahead")
# Read for paused executions only: a pause that follows a resume and no command is that of a hook or a parent.
PAUSED_BY = case(
    (
        executions.c.status == str(ExecutionStatus.PAUSED),
        select(case((commands.c.kind == str(CommandKind.PAUSE), commands.c.sent_by)))
        .where(
            commands.c.execution_id == executions.c.id,
            commands.c.kind.in_([str(CommandKind.PAUSE), str(CommandKind.RESUME)]),
        )
        .order_by(commands.c.position.desc())
        .limit(1)
        .scalar_subquery(),
    )
).label("paused_by")
_ONLY_SINGLE = (executions.c.outcome, DEFINITION_HASH, CANCELLED_BY, TREE_COST, AHEAD, PAUSED_BY)

_queue = text(QUEUE).columns(column("execution_id", Uuid), column("position", BigInteger)).subquery("queue")


def with_queue_position(wanted: Select[Any], tenant_id: str) -> Select[Any]:
    """Add the positions of executions in the queue of their tenant, computed once for all rows."""
    joined = executions.outerjoin(_queue, _queue.c.execution_id == executions.c.id)
    position = _queue.c.position.label("queue_position")
    return wanted.add_columns(position).select_from(joined).params(tenant_id=tenant_id)


STEP_OF_REQUEST = func.coalesce(tool_calls.c.step, requests.c.request["step_number"].as_integer())
PLACE_OF_REQUEST = func.coalesce(tool_calls.c.idx, requests.c.request[bodies.PLACE].as_integer())
"""Where a request belongs: at its call, or without a call where the request itself says."""


class PostgresReader:
    """Reads executions of a tenant."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.replica: Replica | None = None
        """Where lists are read, if it is up to date."""

    async def material(self, ref: ExecutionRef) -> StepInput:
        """Return the inputs of the next step."""
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                execution, said, before = await connection.together(
                    (execution_statements.EXECUTION, execution_key(ref)),
                    (transcript_statements.TRANSCRIPT, execution_key(ref)),
                    (step_statements.STEP_BEFORE, execution_key(ref)),
                    last=True,
                )
        row = execution.first()
        if row is None:
            raise NotFound("execution", ref.execution_id)
        return rows.material(ref, row, said.all(), before.first())

    async def material_with_steps(
        self, ref: ExecutionRef, last: int
    ) -> tuple[StepInput, tuple[StepRow, ...]]:
        """Return the inputs of the next step, and the last steps without messages and outcomes."""
        values = execution_key(ref) | {"limit": last, "with_responses": False}
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                execution, said, before, found, called = await connection.together(
                    (execution_statements.EXECUTION, execution_key(ref)),
                    (transcript_statements.TRANSCRIPT, execution_key(ref)),
                    (step_statements.STEP_BEFORE, execution_key(ref)),
                    (step_statements.LAST_STEPS_WITHOUT_OUTCOMES, values),
                    (call_statements.CALLED_LAST, values),
                    last=True,
                )
        row = execution.first()
        if row is None:
            raise NotFound("execution", ref.execution_id)
        material = rows.material(ref, row, said.all(), before.first())
        return material, _step_rows(found.all()[::-1], None, called)

    async def processing(self, ref: ExecutionRef, number: int) -> FrozenDict | None:
        """Return the recorded result of a step's processors, or None."""
        found = await self._fetch_all(step_statements.PROCESSING, execution_key(ref) | {"number": number})
        return bodies.optional_document(found[0].processed, "what processors said") if found else None

    async def continued_input(self, ref: ExecutionRef) -> ContinuedInput | None:
        """Return the last request of the execution that this one continues, or None."""
        found = await self._fetch_all(step_statements.CONTINUED_INPUT, execution_key(ref))
        if not found:
            return None
        return ContinuedInput(bodies.parse_facts(found[0].facts).usage, found[0].later_messages)

    async def inner_reply(self, ref: ExecutionRef, key: str) -> InnerReply | None:
        """Return the recorded reply to an inner model call, or None."""
        found = await self._fetch_all(call_statements.INNER_REPLY, execution_key(ref) | {"key": key})
        return rows.inner_reply(found[0]) if found else None

    async def recorded_tools(self, ref: ExecutionRef) -> FrozenDict | None:
        """Return the recorded tools of this execution's toolsets, or None."""
        found = await self._fetch_all(execution_statements.TOOLSET_TOOLS, execution_key(ref))
        return bodies.optional_document(found[0].listed, "the tools that were listed") if found else None

    async def metadata_history(self, ref: ExecutionRef) -> MetadataHistory:
        """Return the metadata at the start of an execution, and the changes of its calls."""
        found = await self._fetch_all(transcript_statements.NOTES, execution_key(ref))
        if not found:
            raise NotFound("execution", ref.execution_id)
        return transcripts.parse_metadata_history(found)

    async def sent_commands(self, ref: ExecutionRef) -> tuple[SentCommand, ...]:
        """Return the pauses, resumes and cancels that are stored, in order of arrival."""
        mine = (commands.c.execution_id == ref.execution_id, commands.c.tenant_id == ref.tenant_id)
        wanted = commands.c.kind.in_([CommandKind.PAUSE, CommandKind.RESUME, CommandKind.CANCEL])
        found = await self._fetch_all(select(commands).where(*mine, wanted).order_by(commands.c.position))
        return tuple(SentCommand(CommandKind(row.kind), row.created_at) for row in found)

    async def transcript(self, ref: ExecutionRef) -> Messages:
        """Return the conversation of an execution, including that of the executions it continues."""
        return rows.messages(await self._fetch_all(transcript_statements.TRANSCRIPT, execution_key(ref)))

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """Return one execution."""
        wanted = with_queue_position(select(*ROW).add_columns(*_ONLY_SINGLE), ref.tenant_id)
        found = await self._fetch_all(_filter_by_execution(wanted, ref))
        return rows.single_execution_row(found[0]) if found else None

    async def executions(
        self,
        tenant_id: str,
        *,
        status: ExecutionStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """Return a page of executions, newest first."""
        wanted = select(*ROW).where(executions.c.tenant_id == tenant_id)
        if status is not None:
            wanted = wanted.where(executions.c.status == str(status))
        found = await self._load_page(wanted, executions, rows.execution_row, cursor, limit)
        return await self._with_queue_positions(tenant_id, found)

    async def _with_queue_positions(self, tenant_id: str, page: Page[ExecutionRow]) -> Page[ExecutionRow]:
        """Add the positions of pending executions in the queue of their tenant."""
        if not any(row.status is ExecutionStatus.PENDING for row in page.rows):
            return page
        found = await self._fetch_all(QUEUE_POSITIONS, {"tenant_id": tenant_id})
        positions = {row.execution_id: row.position for row in found}
        shown = (
            replace(row, is_waiting=True, queue_position=position)
            if (position := positions.get(row.ref.execution_id))
            else row
            for row in page.rows
        )
        return replace(page, rows=tuple(shown))

    async def steps(
        self, ref: ExecutionRef, last: int | None = None, *, with_responses: bool = False
    ) -> tuple[StepRow, ...]:
        """Return the steps of an execution, optionally only the last ones."""
        values = execution_key(ref) | {"limit": last, "with_responses": with_responses}
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                found = (await connection.execute(step_statements.LAST_STEPS, values)).all()
                return await _load_steps(connection, ref, found[::-1])

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """Return a page of steps after a step number; the cursor is the `after` of the next page."""
        size = page_size(limit)
        values = execution_key(ref) | {"after": after, "limit": size + 1, "with_responses": False}
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                found = (await connection.execute(step_statements.STEPS_AFTER, values)).all()
                page = await _load_steps(connection, ref, found[:size])
        return Page(page, str(page[-1].number) if len(found) > size else None)

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """Return the open requests, oldest first."""
        wanted = select_requests_of(ref).where(requests.c.state == str(RequestState.OPEN))
        found = await self._fetch_all(wanted.order_by(STEP_OF_REQUEST, PLACE_OF_REQUEST))
        return tuple(rows.request_row(row) for row in found)

    async def requests_within(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """Return all requests of an execution and of its subagents, oldest first."""
        own = (executions.c.id == ref.execution_id, executions.c.tenant_id == ref.tenant_id)
        family = select(executions.c.id).where(*own).cte("family", recursive=True)
        family = family.union_all(
            select(executions.c.id).join(family, executions.c.parent_execution_id == family.c.id)
        )
        wanted = select_requests().where(requests.c.execution_id.in_(select(family.c.id)))
        in_order = wanted.order_by(requests.c.created_at, STEP_OF_REQUEST, PLACE_OF_REQUEST)
        return tuple(map(rows.request_row, await self._fetch_all(in_order)))

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """Return one request."""
        found = await self._fetch_all(select_requests_of(ref).where(requests.c.id == request_id))
        return rows.request_row(found[0]) if found else None

    async def find_request(self, tenant_id: str, request_id: UUID) -> RequestRow | None:
        """Return one request of a tenant."""
        wanted = select_requests().where(requests.c.id == request_id, requests.c.tenant_id == tenant_id)
        found = await self._fetch_all(wanted)
        return rows.request_row(found[0]) if found else None

    async def resolved_under(self, ref: ExecutionRef, key: str) -> RequestRow | None:
        """Return the request that was resolved under this key."""
        named = requests.c.resolution["key"].as_string() == key
        found = await self._fetch_all(select_requests_of(ref).where(named))
        return rows.request_row(found[0]) if found else None

    async def envelopes(
        self, tenant_id: str, stream_id: UUID, after: int = 0, limit: int = 1000
    ) -> tuple[StoredEnvelope, ...]:
        """Return stored envelopes of a stream in order, after a position."""
        payload = cast(envelopes.c.payload, Text).label("payload")
        others = (column for column in envelopes.c if column is not envelopes.c.payload)
        wanted = select(*others, payload).where(
            envelopes.c.stream_id == stream_id, envelopes.c.tenant_id == tenant_id, envelopes.c.seq > after
        )
        found = await self._fetch_all(wanted.order_by(envelopes.c.seq).limit(page_size(limit)))
        return tuple(map(rows.stored_envelope, found))

    async def envelope_range(self, tenant_id: str, stream_id: UUID) -> tuple[int, int]:
        """Return the first and the last `seq` that are stored of a stream; (0, 0) if there are none."""
        mine = (envelopes.c.stream_id == stream_id, envelopes.c.tenant_id == tenant_id)
        ends = select(func.min(envelopes.c.seq).label("first"), func.max(envelopes.c.seq).label("last"))
        (found,) = await self._fetch_all(ends.where(*mine))
        return found.first or 0, found.last or 0

    async def _load_page(
        self,
        wanted: Select[Any],
        table: Table,
        read: Callable[[Row[Any]], T],
        cursor: str | None,
        limit: int,
        *,
        fetch: Callable[[Executable], Awaitable[Sequence[Row[Any]]]] | None = None,
    ) -> Page[T]:
        """Return a page of a table, newest row first, optionally with another way to fetch its rows."""
        size, place = page_size(limit), tuple_(table.c.created_at, table.c.id)
        if cursor is not None:
            last = Cursor.parse(cursor)
            wanted = wanted.where(place < (last.created_at, last.id))
        newest_first = wanted.order_by(table.c.created_at.desc(), table.c.id.desc())
        return page_from(await (fetch or self._fetch_list)(newest_first.limit(size + 1)), size, read)

    async def _read_list(self, ask: Callable[[AsyncEngine], Awaitable[T]]) -> T:
        """Read from the replica if there is one that is up to date, else from the database itself."""
        return await (ask(self.engine) if self.replica is None else self.replica.read(ask))

    async def _fetch_list(self, statement: Executable) -> Sequence[Row[Any]]:
        async def ask(engine: AsyncEngine) -> Sequence[Row[Any]]:
            with error_translation(engine.url):
                async with engine.connect() as connection:
                    return (await connection.execute(statement)).all()

        return await self._read_list(ask)

    async def _fetch_all(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement, parameters)).all()


async def find_execution(connection: Transaction, ref: ExecutionRef) -> Row[Any] | None:
    """Return the execution without its large columns, with the data of its request."""
    wanted = with_queue_position(select(*ROW).add_columns(_REQUEST), ref.tenant_id)
    wanted = _filter_by_execution(wanted, ref)
    return (await connection.execute(wanted)).first()


async def conversation(connection: Transaction, ref: ExecutionRef) -> Messages:
    """Return the conversation, including that of the executions it continues."""
    return rows.messages(
        (await connection.execute(transcript_statements.TRANSCRIPT, execution_key(ref))).all()
    )


def _filter_by_execution(wanted: Select[Any], ref: ExecutionRef) -> Select[Any]:
    return wanted.where(executions.c.id == ref.execution_id, executions.c.tenant_id == ref.tenant_id)


async def _load_steps(
    connection: Transaction, ref: ExecutionRef, found: Sequence[Row[Any]]
) -> tuple[StepRow, ...]:
    """Return consecutive steps with their messages and calls."""
    if not found:
        return ()
    within = execution_key(ref) | {"first": found[0].number, "last": found[-1].number}
    said, called, heard = await connection.together(
        (transcript_statements.MESSAGES_WITHIN, within),
        (call_statements.CALLS_WITHIN, within),
        (command_statements.HEARD_WITHIN, within),
        last=True,
    )
    return _step_rows(found, said, called, heard)


def _step_rows(
    found: Sequence[Row[Any]],
    said: QueryResult | None,
    called: QueryResult,
    heard: QueryResult | None = None,
) -> tuple[StepRow, ...]:
    lines, calls = _by_step(said.all()) if said else {}, _by_step(called.all())
    received = _by_step(sorted(heard.all(), key=attrgetter("step", "position"))) if heard else {}
    return tuple(
        rows.step_row(row, lines.get(row.number, ()), calls.get(row.number, ()), received.get(row.number, ()))
        for row in found
    )


def _by_step(found: Iterable[Row[Any]]) -> dict[int, tuple[Row[Any], ...]]:
    return {step: tuple(group) for step, group in groupby(found, attrgetter("step"))}


def page_from(rows: Sequence[Row[Any]], size: int, read: Callable[[Row[Any]], T]) -> Page[T]:
    """Return a page from rows that were selected with a limit of one more than the page size."""
    more = len(rows) > size
    cursor = Cursor(rows[size - 1].created_at, rows[size - 1].id).text if more else None
    return Page(tuple(map(read, rows[:size])), cursor)


def select_requests() -> Select[Any]:
    """Select requests joined with their calls."""
    asked = requests.outerjoin(tool_calls).join(executions, executions.c.id == requests.c.execution_id)
    columns = (
        tool_calls.c.name,
        tool_calls.c.args,
        tool_calls.c.args_digest,
        STEP_OF_REQUEST.label("step"),
        PLACE_OF_REQUEST.label("idx"),
        executions.c.session_id,
        executions.c.agent_type,
    )
    return select(requests, *columns).select_from(asked)


def select_requests_of(ref: ExecutionRef) -> Select[Any]:
    """Select the requests of an execution."""
    whose = (requests.c.execution_id == ref.execution_id, requests.c.tenant_id == ref.tenant_id)
    return select_requests().where(*whose)
