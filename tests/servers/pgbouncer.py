"""PgBouncer, configured as `docs/deployment.md` says."""

import os
import re
from configparser import ConfigParser
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import URL

from tests.acceptance.harness import ROOT
from tests.pgbouncer import PROGRAM, keeps_statements
from tests.servers.postgres import ROLE, NotInstalled, Postgres, as_user, give_to_user
from tests.servers.programs import Place, Server, accepts

PAGE: Final = ROOT / "docs" / "deployment.md"
_BLOCK: Final = re.compile(r"```ini\n(\[databases\].*?)```", re.DOTALL)


def _documented_configuration() -> ConfigParser:
    found = _BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE.name} has no configuration of PgBouncer"
    parser = ConfigParser(interpolation=None)
    parser.read_string(found[1])
    return parser


def add_pgbouncer(folder: Path, postgres: Postgres, place: Place, address: str, port: int) -> Server:
    """Write the configuration of a PgBouncer in front of a server, and return it; it is not started.

    Raises:
        NotInstalled: There is no PgBouncer.
    """
    if PROGRAM is None:
        raise NotInstalled("PgBouncer is not installed: on Debian, `apt-get install pgbouncer`")
    users, file = folder / "pgbouncer-users.txt", folder / "pgbouncer.ini"
    users.write_text(f'"{ROLE}" "{postgres.password}"\n')
    written = _documented_configuration()
    for name in written["databases"]:
        own = f"host={postgres.address} port={postgres.port} dbname={name}"
        written["databases"][name] = own
    more = {"listen_addr": address, "listen_port": str(port), "auth_file": str(users), "unix_socket_dir": ""}
    written["pgbouncer"].update(more)
    if not keeps_statements():
        # An earlier one does not start with a setting that it does not know.
        del written["pgbouncer"]["max_prepared_statements"]
    with file.open("w") as output:
        written.write(output)
    give_to_user(users, file)
    os.chmod(users, 0o600)
    command = place.command(*as_user("TERM"), PROGRAM, str(file))
    return Server("PgBouncer", command, folder / "pgbouncer.log", partial(accepts, address, port))


def pooled_url(postgres: Postgres, address: str, port: int, database: str) -> str:
    """The URL of a database behind a PgBouncer, for SQLAlchemy."""
    url = URL.create("postgresql+psycopg", ROLE, postgres.password, address, port, database)
    return url.render_as_string(hide_password=False)
