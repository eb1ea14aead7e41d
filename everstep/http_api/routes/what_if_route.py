"""The route that repeats the decisions of past executions under another policy."""

from everstep.client.what_if import WhatIf
from everstep.http_api.auth import READ_MARKER, CallerDep
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.what_if_schemas import WhatIfResponse, WhatIfSent

routes = router("executions")


@routes.post("/agent/what-if", openapi_extra={READ_MARKER: True})
async def examine_executions(body: WhatIfSent, api: ApiDep, caller: CallerDep, key: KeyDep) -> WhatIfResponse:
    """Repeat the decisions of past executions under another policy; nothing is changed and no model is asked.

    Without `sessions:all` these are the caller's own executions.
    """
    del key
    store = api.client_for(caller).store
    what_if = WhatIf(store, caller.scope, body.change, body.wanted, body.limit, body.cursor)
    differing = [each async for each in what_if.comparisons() if each.differs]
    return WhatIfResponse.of(what_if.report, differing, what_if.cursor)
