"""A certificate authority for the hosts of a cluster; ``torchloom tls`` makes and renews it.

::

    <folder>/ca.pem, ca.key           the authority; the key stays on one host
    <folder>/<host>/ca.pem            what is copied to each host
    <folder>/<host>/certificate.pem
    <folder>/<host>/key.pem
"""

import datetime
import ipaddress
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import private_folder, write_private

_CA_DAYS = 3650
_EARLIER = datetime.timedelta(hours=1)
"""A certificate is valid from an hour ago: the clocks of hosts differ."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ANY_USE = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Issued(NamedTuple):
    """A host's folder, and the day until which its certificate is valid."""

    folder: Path
    names: tuple[str, ...]
    until: datetime.datetime


class Authority:
    """The newest CA of a folder, and those before it that are still trusted."""

    def __init__(
        self, folder: Path, key: ec.EllipticCurvePrivateKey, trusted: Sequence[x509.Certificate]
    ) -> None:
        self._folder = folder
        self._key = key
        self._trusted = trusted

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        """Make a CA in a new folder; StateError if there is one."""
        if (folder / "ca.key").exists():
            raise StateError(
                f"{folder}: has a CA: need another folder, or `torchloom tls renew`; {_CUT_SHORT}"
            )
        private_folder(folder)
        return cls._written(folder, ())

    @classmethod
    def read(cls, folder: Path) -> "Authority":
        """Read the CA of a folder; StateError if it has none."""
        try:
            text = (folder / "ca.key").read_bytes()
            key = serialization.load_pem_private_key(text, password=None)
            found = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())
        except OSError as error:
            raise StateError(f"{error.filename}: need a CA: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise StateError(f"{folder}: need a CA in ca.pem and ca.key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise StateError(f"{folder / 'ca.key'}: need a key of `torchloom tls init`")
        return cls(folder, key, found)

    def replaced(self) -> "Authority":
        """Return a new CA in this one's place; hosts trust both until this one has expired."""
        return self._written(self._folder, self._trusted)

    @classmethod
    def _written(cls, folder: Path, before: Iterable[x509.Certificate]) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "torchLoom CA")])
        uses = dict.fromkeys(_KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
        builder = (
            _builder(name, name, key, _CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**uses), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        own = builder.sign(key, hashes.SHA256())
        made = cls(folder, key, (own, *before))
        # In this order: if it ends between, the key before still signs, and hosts trust both.
        write_private(folder / "ca.pem", made.ca_text)
        write_private(folder / "ca.key", _pem(key))
        return made

    @property
    def ca_text(self) -> str:
        """The certificates of the CAs that are trusted and have not expired."""
        now = _now()
        alive = [one for one in self._trusted if one.not_valid_after_utc > now]
        return "".join(_pem(one) for one in alive)

    def issue(self, names: Sequence[str], days: int) -> Issued:
        """Write a host's certificate and key; its folder has its first name.

        StateError if a name is none.
        """
        for name in names:
            if not _HOST.fullmatch(name):
                raise StateError(f"need the name or address of a host, was {name!r}")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        every = tuple(dict.fromkeys((*names, *_LOOPBACK)))
        issuer = self._issuer
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, issuer.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(map(_general, every)), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_ANY_USE), critical=False)
            .add_extension(signer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder = private_folder(self._folder / _UNSAFE.sub("_", names[0]))
        write_private(folder / "ca.pem", self.ca_text)
        write_private(folder / "key.pem", _pem(key))
        write_private(folder / "certificate.pem", _pem(certificate))
        return Issued(folder, tuple(names), certificate.not_valid_after_utc)

    @property
    def _issuer(self) -> x509.Certificate:
        """The certificate of the CA whose key this is."""
        own = self._key.public_key()
        issuer = next((one for one in self._trusted if one.public_key() == own), None)
        if issuer is None:
            raise StateError(
                f"{self._folder}: need the key of a CA in ca.pem, was another in ca.key: restore "
                "them, or repeat `torchloom tls renew --ca`"
            )
        return issuer

    def renew(self, days: int, *, only_ca: bool = False) -> list[Issued]:
        """Issue the certificates of all hosts again, with new keys; or give them ``ca.pem`` only.

        StateError if there is none.
        """
        write_private(self._folder / "ca.pem", self.ca_text)
        renewed = []
        for path in sorted(self._folder.glob("*/certificate.pem")):
            names, until = _names_of(path)
            if only_ca:
                write_private(path.parent / "ca.pem", self.ca_text)
                renewed.append(Issued(path.parent, names, until))
            else:
                renewed.append(self.issue(names, days))
        if not renewed:
            raise StateError(
                f"{self._folder}: need a host's folder with a certificate.pem in it; {_CUT_SHORT}"
            )
        return renewed


_CUT_SHORT = "if `torchloom tls init` was cut short, delete the folder and repeat it"
_KEY_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _names_of(path: Path) -> tuple[tuple[str, ...], datetime.datetime]:
    """Return the names in a certificate but for loopback's, and until when it is valid."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        kind = x509.SubjectAlternativeName
        names = [str(name.value) for name in found.extensions.get_extension_for_class(kind).value]
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise StateError(f"{path}: need a certificate of `torchloom tls init`: {error}") from None
    own = tuple(name for name in names if name not in _LOOPBACK)
    return own or (names[0],), found.not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(one: x509.Certificate | ec.EllipticCurvePrivateKey) -> str:
    if isinstance(one, x509.Certificate):
        return one.public_bytes(serialization.Encoding.PEM).decode()
    return one.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
