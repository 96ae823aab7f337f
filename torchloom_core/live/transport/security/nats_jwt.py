"""NATS identities: nkeys (ed25519 key pairs) and the JWTs that a server in operator mode trusts.

Claims follow version 2 of https://github.com/nats-io/jwt, as far as torchLoom needs them.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal

import msgspec
import nkeys

Kind = Literal["operator", "account", "user"]

Claims = dict[str, Any]

_PREFIX = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
_KEY_BYTES = 32
_CRC_BYTES = 2
_NO_LIMIT = -1

ROLE_TAG = "role"
"""Tag of a person's JWT with the role; the rights are those of the key that signed it."""

_JWT_IN_CREDS = re.compile(r"NATS USER JWT-+\s+[\w-]+\.([\w-]+)\.[\w-]+")


class _Tagged(msgspec.Struct):
    tags: list[str] = []


class _Named(msgspec.Struct):
    """The part of a JWT with the owner's name and tags, and the second at which it expires."""

    name: str = ""
    exp: int = 0
    nats: _Tagged = msgspec.field(default_factory=_Tagged)


def new_seed(kind: Kind) -> str:
    """Return the seed of a fresh key pair; it is the secret half."""
    return str(nkeys.encode_seed(os.urandom(_KEY_BYTES), _PREFIX[kind]).decode())


def public_key(seed: str) -> str:
    """Return the public half of ``seed``."""
    return str(nkeys.from_seed(seed.encode()).public_key.decode())


def is_user_key(text: str) -> bool:
    """Return whether ``text`` is the public key of a user: ``U...``, checksum and all."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return False
    if len(raw) != 1 + _KEY_BYTES + _CRC_BYTES or raw[0] != nkeys.PREFIX_BYTE_USER:
        return False
    return bool(nkeys.crc16(raw[:-_CRC_BYTES]) == int.from_bytes(raw[-_CRC_BYTES:], "little"))


@lru_cache(16)
def _key_pair(seed: str) -> tuple[Any, str]:
    """Return what signs with ``seed``, and its public key; both take as long as a signature."""
    pair = nkeys.from_seed(seed.encode())
    return pair, str(pair.public_key.decode())


def sign(
    seed: str, subject: str, name: str, claims: Claims, issued_s: int, expires_s: int = 0
) -> str:
    """Return the JWT about ``subject``; the same arguments give the same text, to be compared.

    ``expires_s``, in seconds of Unix time; 0: never.
    """
    pair, issuer = _key_pair(seed)
    body: Claims = {
        "iat": issued_s,
        "iss": issuer,
        "name": name,
        "sub": subject,
        "nats": {"version": 2, **claims},
    }
    if expires_s:
        body["exp"] = expires_s
    digest = hashlib.new("sha512_256", msgspec.json.encode(body)).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
    signature = pair.sign(signed.encode())
    return f"{signed}.{_base64url(signature)}"


def account_claims(
    *,
    jetstream: bool,
    scopes: Sequence[Claims] = (),
    exports: Sequence[Claims] = (),
    imports: Sequence[Claims] = (),
    mapped: Mapping[str, str] = {},
    revoked: Mapping[str, int] = {},
) -> Claims:
    """Return the claims of an account; messages on a key of ``mapped`` go to its value.

    ``revoked`` has users' public keys, and until when, in seconds of Unix time, JWTs of theirs had
    to be issued to be void.
    """
    storage = _NO_LIMIT if jetstream else 0
    limits = {
        **_user_limits(_NO_LIMIT),
        "imports": _NO_LIMIT,
        "exports": _NO_LIMIT,
        "wildcards": True,
        "conn": _NO_LIMIT,
        "leaf": _NO_LIMIT,
        "mem_storage": storage,
        "disk_storage": storage,
        "streams": storage,
        "consumer": storage,
    }
    return {
        "type": "account",
        "limits": limits,
        "signing_keys": scopes,
        "exports": exports,
        "imports": imports,
        "mappings": {here: [{"subject": there}] for here, there in mapped.items()},
        **({"revocations": dict(revoked)} if revoked else {}),
    }


def export(
    kind: Literal["stream", "service"], subject: str, *, many_replies: bool = False
) -> Claims:
    """Return the export of ``subject``; a service's answers go to the importing account only."""
    claims = {"name": subject, "subject": subject, "type": kind}
    return {**claims, "response_type": "Stream"} if many_replies else claims


def import_from(
    owner: str,
    kind: Literal["stream", "service"],
    subject: str,
    *,
    called: str = "",
    share: bool = False,
) -> Claims:
    """Return the import of what account ``owner`` exports, here ``called`` by another subject.

    With ``share`` the server adds to each request a header that describes its sender.
    """
    claims: Claims = {"name": subject, "subject": subject, "account": owner, "type": kind}
    if share:
        claims["share"] = True
    return {**claims, "local_subject": called} if called else claims


def scope(
    key: str, role: str, publish: list[str], subscribe: list[str], subscriptions: int
) -> Claims:
    """Return a signing key whose users have exactly these permissions, whatever they claim."""
    return {
        "kind": "user_scope",
        "key": key,
        "role": role,
        "template": {**_rights(publish, subscribe), **_user_limits(subscriptions)},
    }


def user_claims(publish: list[str], subscribe: list[str], subscriptions: int) -> Claims:
    """Return the claims of a user who may publish and subscribe only to these subjects."""
    return {"type": "user", **_rights(publish, subscribe), **_user_limits(subscriptions)}


def scoped_user_claims(account: str, tags: Sequence[str] = ()) -> Claims:
    """Return the claims of a user with the rights of the key's scope, which may refer to tags."""
    claims = {"type": "user", "issuer_account": account}
    return {**claims, "tags": tags} if tags else claims


def creds_text(jwt: str, seed: str) -> str:
    """Return a NATS credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def user_name(creds: str) -> str:
    """Return the name in the user JWT of a NATS credentials file, "" if it has none."""
    with suppress(ValueError):
        return _named(creds).name
    return ""


def user_tag(creds: str, key: str) -> str:
    """Return the value of the tag ``key:value`` in such a file, "" if it has none."""
    with suppress(ValueError):
        found = (tag.partition(":") for tag in _named(creds).nats.tags)
        return next((value for name, _, value in found if name == key), "")
    return ""


def expires_s(creds: str) -> int:
    """Return when credentials expire, in seconds since 1970, 0: never; ValueError if malformed."""
    return _named(creds).exp


def _named(creds: str) -> _Named:
    found = _JWT_IN_CREDS.search(creds)
    if found is None:
        raise ValueError("it has no user JWT")
    body = found[1]
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return msgspec.json.decode(raw, type=_Named)
    except (binascii.Error, ValueError, RecursionError):
        raise ValueError("its JWT is damaged") from None


def _user_limits(subscriptions: int) -> Claims:
    """Return the limits that every user and every scope has to set."""
    return {"subs": subscriptions, "data": _NO_LIMIT, "payload": _NO_LIMIT}


def _rights(publish: list[str], subscribe: list[str]) -> Claims:
    return {"pub": {"allow": publish}, "sub": {"allow": subscribe}}


def _part(value: Claims) -> str:
    return _base64url(msgspec.json.encode(value))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
