"""``torchloom credentials``: who may control the run on the embedded broker."""

import asyncio
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.table import Table

from torchloom_core.cli.options import HERE, ConfigPath, Connection
from torchloom_core.cli.output import console
from torchloom_core.cli.weaver_client import open_client, send
from torchloom_core.config.loading import load
from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import ConfigError, RequestError, StateError
from torchloom_core.floor.files import write_private
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.transport.security.nats_jwt import new_seed, public_key
from torchloom_core.wire.access import Access, Issued, PersonRole, Revoke
from torchloom_core.wire.operator import Answer
from torchloom_core.wire.subjects import DEFAULT_PERSON, NAME_RULE, is_name

_DAY_S = 86_400


def create(
    name: str,
    /,
    *,
    role: PersonRole = "operator",
    days: Annotated[float | None, Parameter(validator=Number(gt=0, lte=36_500))] = None,
    out: Path | None = None,
    config: ConfigPath = None,
) -> None:
    """Write NATS credentials with which a person acts under their own name.

    They are for the nats-server that the Weaver starts; run it on that host. The trajectory
    records the name with every request.

    Parameters
    ----------
    name
        Name of the person: 1 to 64 of A-Z a-z 0-9 _ -.
    role
        A viewer reads; an operator also acts on the run; an admin also lists and revokes
        credentials.
    days
        How long they are valid. Default: until they are revoked.
    out
        New file to write. Default: NAME.creds in this folder.
    """
    if not is_name(name):
        raise ConfigError(f"need a name of {NAME_RULE}, was {name!r}")
    if name == DEFAULT_PERSON:
        raise ConfigError(f"need another name: {name} is the name of the default credentials")
    settings = load(config)
    credentials = Credentials.find(Path(settings.weaver.state_dir), settings.run.name)
    path = out or Path(f"{name}.creds")
    if path.exists():
        raise StateError(f"{path} exists already: give another --out")
    seed, now_s = new_seed("user"), int(time.time())
    expires_s = now_s + round(days * _DAY_S) if days else 0
    issued = Issued(name=name, role=role, key=public_key(seed), issued_s=now_s, expires_s=expires_s)
    credentials.register.note(issued)
    write_private(path, credentials.person_creds_text(name, seed, role, expires_s))
    console().print(
        f"wrote {path}: {name}, {role}, passes it with --creds or NATS_CREDS",
        markup=False,
        soft_wrap=True,
    )


def list_credentials(*, connection: Connection = HERE) -> None:
    """List who has credentials. Needs an admin's, such as those in the state folder."""
    asyncio.run(_list(connection))


def revoke(
    name: str = "",
    /,
    *,
    worker: bool = False,
    join: bool = False,
    undo: bool = False,
    connection: Connection = HERE,
) -> None:
    """Revoke credentials at once; connections that use them are closed.

    Needs an admin's credentials, such as those in the state folder.

    Parameters
    ----------
    name
        Whose: a person, or with --worker a worker.
    worker
        The name is that of a worker. It may not join again.
    join
        Revoke those in join.json instead, and write a new file for trainers that start from now on.
    undo
        Let a worker that was revoked join again.
    """
    if join == bool(name):
        raise ConfigError("need either a name or --join")
    kind: Literal["person", "worker", "join"] = "join" if join else "worker" if worker else "person"
    try:
        wanted = Revoke(kind=kind, name=name or None, undo=undo)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    asyncio.run(_revoke(wanted, connection))


async def _revoke(wanted: Revoke, connection: Connection) -> None:
    async with open_client(connection) as client:
        answer = await send(client, "access.revoke", Answer, wanted)
    if not answer.ok:
        raise RequestError(answer.text)
    console().print(answer.text, markup=False, soft_wrap=True)


async def _list(connection: Connection) -> None:
    async with open_client(connection) as client:
        access = await send(client, "access", Access)
    table = Table("person", "role", "issued", "expires", "state")
    for one in access.people:
        expires = _day(one.expires_s) if one.expires_s else "never"
        table.add_row(one.name, one.role, _day(one.issued_s), expires, _state(one))
    out = console()
    out.print(table)
    joining = f"until {_day(access.join_expires_s)}" if access.join_expires_s else "without an end"
    out.print(f"{access.workers} workers' processes have credentials; join.json: {joining}")
    if access.blocked:
        out.print(f"blocked workers: {', '.join(access.blocked)}", markup=False, soft_wrap=True)


def _state(issued: Issued) -> str:
    if issued.revoked_s:
        return f"revoked {_day(issued.revoked_s)}"
    return "expired" if 0 < issued.expires_s <= time.time() else "valid"


def _day(moment_s: int) -> str:
    return moment_text(moment_s * SECOND_NS)
