"""Certificates of hosts on loopback, by the authority that ``torchloom tls`` uses."""

from torchloom_core.floor.tls import TlsFiles
from torchloom_core.live.transport.security.authority import Authority


def files_of(folder, place="[broker]"):
    """Return the files of a host's folder."""
    paths = (str(folder / f"{name}.pem") for name in ("certificate", "key", "ca"))
    return TlsFiles(*paths, place=place)


def issued(folder, *names, days=365):
    """Make an authority in ``folder``; give it, and the files of a host with these names."""
    authority = Authority.make(folder)
    return authority, files_of(authority.issue(names or ("127.0.0.1",), days).folder)
