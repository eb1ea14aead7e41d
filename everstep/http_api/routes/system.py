"""Routes about the installation itself, for its operators."""

from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api, SystemReader
from everstep.http_api.problems import missing_scope, not_found
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.system_responses import ChecksResponse, SystemResponse

routes = router("operations")


@routes.get("/agent/system")
async def read_system(api: ApiDep, caller: CallerDep) -> SystemResponse:
    """Read the state of the installation: workers, gateways, queues, repairs and retention.

    It needs the scope `admin`.
    """
    return await _system(api, caller).read()


@routes.get("/agent/system/checks")
async def read_checks(api: ApiDep, caller: CallerDep) -> ChecksResponse:
    """Run the checks of `everstep doctor` from this process; results are up to 30 seconds old.

    It needs the scope `admin`. Whether commands of agents can run
    is not checked: that depends on the machines of the workers.
    """
    return await _system(api, caller).checks()


def _system(api: Api, caller: Caller) -> SystemReader:
    if not caller.sees_installation:
        raise missing_scope(f"The state of the installation needs the scope '{Grant.ADMIN}'", Grant.ADMIN)
    if api.system is None:
        raise not_found("state of", "this server")
    return api.system
