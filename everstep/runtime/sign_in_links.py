"""Links that sign people of this machine in to the console."""

from everstep.http_api.sign_ins import create_code
from everstep.runtime.installation import Installation


async def console_link(installation: Installation, url: str) -> str:
    """Return the address of the console, with a code that signs in the user of this machine once.

    Args:
        installation: The installation, which stores the code.
        url: The URL of its API.
    """
    if installation.settings.auth == "off":
        return f"{url}/console/"
    return f"{url}/console/#code={await create_code(installation.sign_ins)}"
