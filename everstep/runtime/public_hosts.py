"""The host names under which a process is reached."""

from typing import Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.hosts import SETTING, AllowedHosts
from everstep.runtime.settings import Settings

EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 -- recognised, not listened on


def allowed_hosts(settings: Settings, listens_on: str, what: str) -> AllowedHosts:
    """Return the configured names, and the address that a port is bound to.

    A process that listens on all addresses does not know its names. It refuses to start, because refusing
    every request later would leave its probes green.

    Args:
        settings: The settings with the names.
        listens_on: The host that the port is bound to.
        what: The prefix of the port's settings, such as `EVERSTEP_HTTP`.

    Raises:
        InvalidInput: A name is not valid, or none is set and one is needed.
    """
    urls = (settings.public_url or "", settings.gateway_url or "")
    public = [url.partition("://")[2].partition("/")[0] for url in urls]
    if listens_on not in EVERYWHERE:
        return AllowedHosts.of([*settings.allowed_hosts, listens_on], public)
    if not settings.allowed_hosts:
        raise InvalidInput(
            f"{what}_HOST is {listens_on}, so other machines reach this process, under names that it does "
            f"not know: set {SETTING}, such as {SETTING}=api.example.com (* accepts any name, "
            "including names that web pages choose)"
        )
    return AllowedHosts.of(settings.allowed_hosts, public)
