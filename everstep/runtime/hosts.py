"""By which names a process is reached."""

from typing import Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.hosts import SETTING, AllowedHosts
from everstep.runtime.settings import Settings

EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 -- recognised, not listened on


def allowed_hosts(settings: Settings, listens_on: str, what: str) -> AllowedHosts:
    """The names that are set, and the address that a port is opened on.

    A process that listens everywhere does not know its names. It refuses to start rather than to refuse every
    request later: its probes would say that all is well.

    Args:
        settings: Where the names are set.
        listens_on: The host that the port is opened on.
        what: How the settings of that port begin, such as `EVERSTEP_HTTP`.

    Raises:
        InvalidInput: A name is none, or there is none where one is needed.
    """
    if listens_on not in EVERYWHERE:
        return AllowedHosts.of([*settings.allowed_hosts, listens_on])
    if not settings.allowed_hosts:
        raise InvalidInput(
            f"{what}_HOST is {listens_on}, so others reach this process, by names that it does not know: set "
            f"{SETTING}, such as {SETTING}=api.example.com (* is any name, also one that a web page has made)"
        )
    return AllowedHosts.of(settings.allowed_hosts)
