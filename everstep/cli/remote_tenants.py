"""The limits of tenants of another installation, over its HTTP API."""

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import quote

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.tenant_limits import EVERYONE, LIMITS, TenantLimits
from everstep.cli.remote import Declined, Remote
from everstep.http_api.schemas.tenant_schemas import TenantLimitsList, TenantLimitsResponse

PATH = "/agent/tenants"


class RemoteTenants:
    """The limits of all tenants, like `Tenants`."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def list(self) -> Sequence[TenantLimits]:
        """Return the limits of all tenants and users."""
        return _limits_of(await self._remote.get(TenantLimitsList, PATH))

    async def show(self, name: str) -> Sequence[TenantLimits]:
        """Return the limits of a tenant, and those of its users.

        Raises:
            InvalidInput: It has no limits and no executions.
        """
        found = await self._find_all(name)
        if found is None:
            raise InvalidInput(f"there is no tenant '{name}': it has no limits and no executions")
        return found

    async def find(self, name: str, user: str | None) -> TenantLimits | None:
        """Return the own limits of a tenant or of a user, if there are any."""
        names = name, user
        return next((each for each in await self.list() if (each.tenant_id, each.user_id) == names), None)

    async def is_known(self, name: str) -> bool:
        """Return whether a tenant has limits or executions; so has every tenant together."""
        return name == EVERYONE or await self._find_all(name) is not None

    async def set(self, limits: TenantLimits) -> dict[str, int]:
        """Store limits in place of earlier ones; how many executions started is not known."""
        body = {name: getattr(limits, name) for name in ("weight", *LIMITS)}
        path, user = _path(limits.tenant_id), limits.user_id
        await self._remote.put(TenantLimitsResponse, path, body, user_id=user)
        return {}

    async def remove(self, name: str, user: str | None) -> TenantLimits:
        """Remove the limits of a tenant or of a user; return them.

        Raises:
            InvalidInput: There are none.
        """
        limits = await self.find(name, user)
        if limits is None:
            owner = TenantLimits(name, user).owner_text
            raise InvalidInput(f"{owner} has no limits; `everstep tenants list` lists them")
        await self._remote.delete(_path(name), user_id=user)
        return limits

    async def _find_all(self, name: str) -> Sequence[TenantLimits] | None:
        try:
            return _limits_of(await self._remote.get(TenantLimitsList, _path(name)))
        except Declined as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise


def _path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"


def _limits_of(found: TenantLimitsList) -> Sequence[TenantLimits]:
    return [TenantLimits(**each.model_dump()) for each in found.items]
