"""``torchloom tls``: certificates for the hosts of a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.output import console
from torchloom_core.floor.errors import ConfigError

if TYPE_CHECKING:
    from torchloom_core.live.transport.security.authority import Issued

_Days = Annotated[int, Parameter(validator=Number(gte=1, lte=3650))]
_Folder = Annotated[Path, Parameter(name="--folder")]
_DEFAULT = Path("tls")


def init(*hosts: str, folder: _Folder = _DEFAULT, days: _Days = 365) -> None:
    """Make a CA, and a certificate and key for each host, in one folder a host.

    Copy a host's folder to that host, and nothing else: ca.key signs certificates for any host.

    Parameters
    ----------
    hosts
        Name or address of each host, as the others reach it; several of one host separated by
        commas.
    folder
        Folder to make; readable by its owner only.
    days
        How long the hosts' certificates are valid, days.
    """
    from torchloom_core.live.transport.security.authority import Authority

    if not hosts:
        raise ConfigError("need the name or address of at least one host, was none")
    split = [tuple(filter(None, host.split(","))) for host in hosts]
    if not all(split):
        raise ConfigError("need the name or address of a host, was an empty one")
    authority = Authority.make(folder)
    _print([authority.issue(names, days) for names in split])
    _say("on each host set in torchloom.toml, for [broker], [lighthouse], [dashboard]:")
    for name in ("certificate", "key", "ca"):
        _say(f'  {name} = "PATH/{name}.pem"')


def renew(
    *,
    folder: _Folder = _DEFAULT,
    days: _Days = 365,
    ca: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Renew the certificates and keys of all hosts in a folder of `torchloom tls init`.

    Copy the folders to the hosts again: running servers load the files, and connections go on.

    Parameters
    ----------
    folder
        Folder of `torchloom tls init`.
    days
        How long the certificates are valid, days.
    ca
        Make a new CA, and renew ca.pem only, which then has both. Once all hosts and join.json have
        it, renew the certificates without this option: the new CA signs them.
    """
    from torchloom_core.live.transport.security.authority import Authority

    authority = Authority.read(folder)
    if ca:
        authority = authority.replaced()
    _print(authority.renew(days, only_ca=ca))


def _print(issued: "list[Issued]") -> None:
    for one in issued:
        _say(f"{one.folder}: {', '.join(one.names)}, valid until {one.until:%Y-%m-%d}")


def _say(line: str) -> None:
    console().print(line, markup=False, highlight=False, soft_wrap=True)
