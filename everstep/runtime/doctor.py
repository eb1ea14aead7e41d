"""Diagnosis of an installation: what is wrong, and how to fix it."""

import asyncio
import os
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import httpx2
from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeTaskQueueRequest
from temporalio.client import ActivityFailureError, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, TimeoutError as NoAnswer, TimeoutType
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.errors import EverstepError, UnknownName
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.capabilities.bash import BashTool, cgroups
from everstep.capabilities.bash.self_test import failed_checks
from everstep.client.temporal_entry import ActRequest, ExecutionReport
from everstep.inference.presets import Driver, Preset, Presets
from everstep.runtime.agents import load_all_agents
from everstep.runtime.bus_choice import probe_nats
from everstep.runtime.codec import ENCODING, PlainPayload, WrongPayloadKey
from everstep.runtime.embedded import search_attributes
from everstep.runtime.failing_executions import describe_workflow, find_failures
from everstep.runtime.installation import (
    HOW_TO_START,
    Installation,
    locate_services,
    open_installation,
)
from everstep.runtime.local_model.model_server import missing_part
from everstep.runtime.models import presets_of
from everstep.runtime.protection import close_to_agents
from everstep.runtime.replica_choice import probe_replica
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import SEARCH_ATTRIBUTES, connect
from everstep.store.engine import describe_way
from everstep.store.migrate import pending
from everstep.workflows.contracts import ExecutionInput, workflow_id

PATIENCE = timedelta(seconds=3)
"""A running worker takes a query within milliseconds."""
WORKER_PATIENCE = timedelta(seconds=40)
"""It answers as fast, unless its own database does not respond: then it answers after its deadlines."""
CHECK_SECONDS = 60.0
"""The limit for each check."""

PROVIDER_SECONDS = 5.0

VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
"""Such workers only receive tasks of their own version, so an unversioned query may never arrive."""

NO_EXECUTION = UUID(int=0)
"""The id of an execution that does not exist: a worker's "not found" shows that it works."""

HOW_TO_WORK = "start one with `everstep worker`"
SAME_KEY = "all processes need the same EVERSTEP_PAYLOAD_KEY"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    is_good: bool
    text: str


async def run_checks(settings: Settings) -> AsyncGenerator[CheckResult]:
    """Check everything that an execution needs, in the order in which it needs it."""
    try:
        settings = locate_services(settings)
    except EverstepError as error:
        yield CheckResult(False, str(error))
        return
    database = await _run_check("PostgreSQL", _check_database, settings)
    yield database
    if settings.bus == "nats":
        yield await _run_check("NATS", _check_nats, settings)
    if settings.database_replica_url:
        yield await _run_check("The replica", _check_replica, settings)
    temporal = await _run_check("Temporal", _check_temporal, settings)
    yield temporal
    models = await _run_check("The provider of models", _check_models, settings)
    yield models
    agents, *sandboxes = await _check_agents(settings)
    yield agents
    for finding in sandboxes:
        yield finding
    if not temporal.is_good:
        return
    worker = await _run_check("A worker", _check_worker, settings)
    yield worker
    if not (database.is_good and models.is_good and agents.is_good):
        # A missing part prevents opening the installation, and was reported above.
        return
    try:
        async with open_installation(settings, "everstep doctor") as installation:
            async for finding in _check_executions(installation, has_worker=worker.is_good):
                yield finding
    except (EverstepError, RPCError) as error:
        yield CheckResult(False, str(error))


async def check_installation(installation: Installation) -> AsyncGenerator[CheckResult]:
    """Check an open installation, but not whether commands of agents can run: a worker may be elsewhere."""
    settings = installation.settings
    checks = (
        ("PostgreSQL", _check_database),
        ("Temporal", _check_temporal),
        ("The provider of models", _check_models),
        ("A worker", _check_worker),
    )
    results = await asyncio.gather(*(_run_check(what, check, settings) for what, check in checks))
    for result in results:
        yield result
    if settings.bus == "nats":
        yield await _run_check("NATS", _check_nats, settings)
    if settings.database_replica_url:
        yield await _run_check("The replica", _check_replica, settings)
    agents = installation.book.agents
    keyless = [
        finding
        for name, agent in agents.items()
        if (finding := _missing_key(name, agent, installation.models.presets))
    ]
    for finding in keyless or [CheckResult(True, f"agents: {', '.join(agents)}")]:
        yield finding
    if not (results[0].is_good and results[1].is_good):
        return
    async for finding in _check_executions(installation, has_worker=results[-1].is_good):
        yield finding


async def _check_executions(installation: Installation, *, has_worker: bool) -> AsyncGenerator[CheckResult]:
    """Check the executions that have not ended."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            payloads = await _check_payloads(installation)
            waiting = await _check_waiting(installation, has_worker=has_worker)
            failing = [CheckResult(False, each) async for each in find_failures(installation)]
    except (EverstepError, RPCError) as error:
        yield CheckResult(False, str(error))
    except TimeoutError:
        yield CheckResult(
            False, f"the running executions cannot be checked within {CHECK_SECONDS:g} seconds; try again"
        )
    else:
        for finding in (payloads, *waiting, *failing):
            yield finding


async def _run_check(
    what: str, check: Callable[[Settings], Awaitable[CheckResult]], settings: Settings
) -> CheckResult:
    """Return the finding of a check; a check that fails or times out is a finding, too."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check(settings)
    except (EverstepError, RPCError) as error:
        return CheckResult(False, str(error))
    except TimeoutError:
        return CheckResult(False, f"{what} does not answer within {CHECK_SECONDS:g} seconds")


async def _check_database(settings: Settings) -> CheckResult:
    missing = await pending(settings.require("database_url", HOW_TO_START))
    if missing:
        return CheckResult(
            False, f"the tables are out of date ({', '.join(missing)}): run `everstep db upgrade`"
        )
    way = await describe_way(settings.require("database_url", HOW_TO_START), settings.database_prepared)
    return CheckResult(True, f"PostgreSQL answers{way}, and its tables are up to date")


async def _check_replica(settings: Settings) -> CheckResult:
    """Report whether lists are read from the replica; without it, they are read from the primary."""
    return CheckResult(True, f"the replica of PostgreSQL is {await probe_replica(settings)}")


async def _check_nats(settings: Settings) -> CheckResult:
    """Report whether the bus works; without it, viewers get events later."""
    return CheckResult(True, f"NATS answers at {await probe_nats(settings)}")


async def _check_temporal(settings: Settings) -> CheckResult:
    client = await connect(settings)
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return CheckResult(
            False,
            f"Temporal at {settings.temporal_address} has no namespace '{client.namespace}': "
            "create it, or check TEMPORAL_NAMESPACE",
        )
    found = await _check_search_attributes(client, settings)
    return CheckResult(found.is_good, f"Temporal answers at {settings.temporal_address}; {found.text}")


async def _check_search_attributes(client: Client, settings: Settings) -> CheckResult:
    """Report whether executions can be found in Temporal; they run as well without."""
    if settings.search_attributes is False:
        return CheckResult(True, "executions get no search attributes: EVERSTEP_SEARCH_ATTRIBUTES is false")
    try:
        missing = await search_attributes.find_missing(client, SEARCH_ATTRIBUTES)
    except RPCError as error:
        use = "they are set" if settings.search_attributes else "EVERSTEP_SEARCH_ATTRIBUTES=true sets them"
        return CheckResult(True, f"Temporal does not list its search attributes ({error.message}): {use}")
    if not missing:
        return CheckResult(True, f"'{client.namespace}' has Everstep's search attributes")
    lacking = f"'{client.namespace}' does not have the search attributes {', '.join(missing)}"
    how = "run `everstep db upgrade`, then start the processes again"
    if settings.search_attributes:
        return CheckResult(False, f"{lacking}, and EVERSTEP_SEARCH_ATTRIBUTES is true: {how}")
    return CheckResult(True, f"{lacking}, so executions get none: to find them by agent or status, {how}")


async def _check_worker(settings: Settings) -> CheckResult:
    """Check for a worker. Temporal lists workers for minutes after they end, so one of them is queried."""
    client, queue = await connect(settings), settings.task_queue
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    pollers = (await client.workflow_service.describe_task_queue(request)).pollers
    if not pollers:
        return CheckResult(False, f"no worker listens on '{queue}': {HOW_TO_WORK}")
    if any(poller.deployment_options.worker_versioning_mode == VERSIONED for poller in pollers):
        return CheckResult(True, f"only versioned workers listen on '{queue}'")
    try:
        await client.execute_activity(
            "everstep.act",
            ActRequest(execution_id=NO_EXECUTION, act="show"),
            id=f"everstep-doctor-{uuid4()}",
            task_queue=queue,
            result_type=ExecutionReport,
            schedule_to_start_timeout=PATIENCE,
            schedule_to_close_timeout=WORKER_PATIENCE,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    except ActivityFailureError as error:
        return _worker_result(error.cause, queue)
    except WrongPayloadKey:
        return CheckResult(
            False, f"the worker on '{queue}' has another payload_key than this process: {SAME_KEY}"
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.UNIMPLEMENTED:
            raise
    return CheckResult(True, f"a worker listens on '{queue}'")


def _worker_result(error: BaseException | None, queue: str) -> CheckResult:
    """Return the finding from a worker's answer, which is expected to be "not found"."""
    match error:
        case NoAnswer() if error.type is not TimeoutType.SCHEDULE_TO_START:
            seconds = f"{WORKER_PATIENCE.total_seconds():g} seconds"
            return CheckResult(
                False,
                f"a worker on '{queue}' took a query and did not answer within {seconds}: see its log",
            )
        case NoAnswer():
            seconds = f"{PATIENCE.total_seconds():g} seconds"
            return CheckResult(False, f"no worker on '{queue}' answers within {seconds}: {HOW_TO_WORK}")
        case ApplicationError(message="Failed decoding arguments" | "Encoded failure"):
            return CheckResult(
                False, f"the worker on '{queue}' has another payload_key than this process: {SAME_KEY}"
            )
        case ApplicationError(type="NotFound"):
            return CheckResult(True, f"a worker answers on '{queue}'")
        case _:
            return CheckResult(False, f"a worker answers on '{queue}' that it cannot work: {error}")


async def _check_models(settings: Settings) -> CheckResult:
    presets = presets_of(settings)
    usual = presets.resolve()
    for preset in presets.chain(usual):
        if complaint := await _provider_refusal(settings, preset, preset.key(os.environ)):
            return CheckResult(False, f"preset '{preset.name}': {complaint}")
    told = f"models: {', '.join(presets.names)}; '{usual.name}' answers, unless an agent names another one"
    if usual.driver is Driver.SCRIPTED and settings.preset is None:
        told += ". This process has no provider's key, and workers may have one: run this where a worker runs"
    return CheckResult(True, told)


async def _provider_refusal(settings: Settings, preset: Preset, key: str | None) -> str | None:
    """Return why the provider refuses a request for its list of models, which costs nothing."""
    match preset.driver:
        case Driver.SCRIPTED:
            return None
        case Driver.LOCAL:
            return missing_part(settings)
        case Driver.ANTHROPIC:
            from everstep.inference.anthropic_messages import ADDRESS  # noqa: PLC0415 -- its SDK takes a second

            address = f"{preset.base_url or ADDRESS}/v1/models"
            headers = {"anthropic-version": "2023-06-01", "x-api-key": key or "none"}
        case Driver.OPENAI | Driver.OPENAI_CHAT:
            from everstep.inference.openai_client import ADDRESS  # noqa: PLC0415 -- its SDK takes a second

            address = f"{preset.base_url or ADDRESS}/models"
            headers = {"authorization": f"Bearer {key or 'none'}"}
    try:
        async with httpx2.AsyncClient(timeout=PROVIDER_SECONDS) as http:
            answer = await http.get(address, headers=headers)
    except httpx2.HTTPError as error:
        return (
            f"{address} cannot be reached ({error or type(error).__name__}): check the network and base_url"
        )
    if answer.status_code in {401, 403}:
        where = f"the key in {preset.api_key_env}" if preset.api_key_env else "to answer without a key"
        return f"the provider refuses {where} (HTTP {answer.status_code}): check it, or api_key_env"
    # A server without such a list may support everything else.
    return None


async def _check_agents(settings: Settings) -> Sequence[CheckResult]:
    """Check that all agents load, and that their commands can run here, although a worker may be elsewhere.

    The agents are loaded once, because each load warns about unusable ones.
    """
    try:
        # The check of the models covers the default preset.
        presets = Presets.read(settings.presets, os.environ)
        close_to_agents(settings)
        known = load_all_agents(settings.agents, presets, settings.mcp)
    except EverstepError as error:
        return [CheckResult(False, str(error))]
    except Exception as error:  # noqa: BLE001 -- an arbitrary module
        where = ", ".join(settings.agents)
        return [CheckResult(False, f"{where} cannot be imported: {type(error).__name__}: {error}")]
    default = settings.default_agent
    if default is not None and default not in known:
        return [CheckResult(False, f"default_agent: {UnknownName('agent', default, known)}")]
    names = (
        ", ".join(known) if settings.agents else "only the demo agent; set EVERSTEP_AGENTS to use your own"
    )
    keyless = [finding for name, agent in known.items() if (finding := _missing_key(name, agent, presets))]
    tools = [
        (name, tool) for name, agent in known.items() for tool in agent.tools if isinstance(tool, BashTool)
    ]
    found = keyless or [CheckResult(True, f"agents: {names}")]
    return [*found, *[await _check_sandbox(name, tool.policy) for name, tool in tools]]


def _missing_key(name: str, agent: AgentDefinition, presets: Presets) -> CheckResult | None:
    """Return a finding if an agent names a model whose key is missing."""
    wanted = agent.model_choice
    if not wanted or not agent.wants_model:
        return None
    try:
        for preset in presets.chain(presets.resolve(wanted)):
            preset.key(os.environ)
    except EverstepError as error:
        return CheckResult(False, f"the agent '{name}' cannot call its model: {error}")
    return None


async def _check_sandbox(agent: str, policy: ExecutionPolicy) -> CheckResult:
    try:
        failed = "; ".join(await failed_checks(policy))
    except EverstepError as error:
        failed = str(error)
    if failed:
        return CheckResult(False, f"the agent '{agent}' cannot run commands on this machine: {failed}")
    return CheckResult(
        True, f"sandbox: it holds on this machine, for the agent '{agent}'; {cgroups.detect_bound()}"
    )


async def _check_payloads(installation: Installation) -> CheckResult:
    """Check that this process can decrypt the input of the newest execution."""
    good = CheckResult(True, "payloads in Temporal can be read")
    for row in (await installation.client.list(limit=1)).rows:
        handle = installation.temporal.get_workflow_handle(workflow_id(row.ref))
        try:
            began = await anext(handle.fetch_history_events(page_size=1))
            payloads = began.workflow_execution_started_event_attributes.input.payloads
            if installation.settings.payload_key is None and payloads[0].metadata.get("encoding") == ENCODING:
                return CheckResult(
                    False, f"payloads in Temporal are encrypted, and this process has no key: {SAME_KEY}"
                )
            await installation.temporal.data_converter.decode(payloads, [ExecutionInput])
        except WrongPayloadKey:
            return CheckResult(
                False, f"payloads in Temporal were encrypted with another payload_key: {SAME_KEY}"
            )
        except PlainPayload as error:
            return CheckResult(False, str(error))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    return good


async def _check_waiting(installation: Installation, *, has_worker: bool) -> Sequence[CheckResult]:
    """Report executions that no worker has picked up."""
    overview = await installation.overview.overview(status=ExecutionStatus.PENDING, limit=100)
    overview = overview.with_limits(await installation.limits.find_waits(overview.users))
    held, others = Counter[tuple[str, str]](), list[ExecutionRow]()
    for each in overview.executions:
        limit = each.limits.start if each.needs_place else None if each.is_queued else each.limits.call
        if limit:
            held[each.row.ref.tenant_id, limit] += 1
        else:
            others.append(each.row)
    lost = [row for row in others if not await describe_workflow(installation, row)]
    waiting, found = len(others) - len(lost), list[CheckResult]()
    for (tenant, limit), count in held.items():
        how = f"see `everstep tenants show {shlex.quote(tenant)}`"
        found.append(CheckResult(True, f"{count} execution(s) of '{tenant}' are pending {limit}: {how}"))
    if waiting:
        why = "they start as soon as it is free" if has_worker else "they wait for a worker"
        found.append(CheckResult(has_worker, f"{waiting} execution(s) are pending: {why}"))
    if lost:
        which = f"{lost[0].ref.execution_id}" + (" and others" if len(lost) > 1 else "")
        why = "they wait for their session's turn, or for a worker to start them"
        found.append(
            CheckResult(has_worker, f"{len(lost)} execution(s) have not reached Temporal ({which}): {why}")
        )
    return found or [CheckResult(True, "no execution waits to be picked up")]
