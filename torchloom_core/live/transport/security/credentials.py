"""Keys and credentials on the embedded broker, and the accounts that its server trusts.

The server runs in operator mode: it trusts one operator, which signs four accounts, the system's
and the three of :mod:`torchloom_core.live.transport.security.rights`, which lists the permissions.
The permissions of a worker or a person are not in its own JWT but in the scope of the key that
signed it: the JWT has only the name and, for a worker, the incarnation.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import nkeys

from torchloom_core.floor.errors import BrokerError, StateError
from torchloom_core.floor.files import private_folder, write_private
from torchloom_core.live.transport.security import nats_jwt, rights
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.live.transport.security.nats_jwt import Claims
from torchloom_core.live.transport.security.register import Register
from torchloom_core.live.transport.security.rights import Rights
from torchloom_core.wire import subjects
from torchloom_core.wire.access import VERBS_OF, PersonRole
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import Count

_KIND_OF: dict[str, nats_jwt.Kind] = {
    "operator": "operator",
    **dict.fromkeys(
        (
            *("system", "account", "workers", "threadlets", "people"),
            *("viewers", "operators", "admins"),
        ),
        "account",
    ),
    **dict.fromkeys(("weaver", "person", "joiner", "lighthouse"), "user"),
}
_LATER = ("people", "operators", "lighthouse", "viewers", "admins")
"""Keys that an older state folder lacks."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Seeds of all identities, made once per state folder; an older one lacks some."""

    operator: str
    system: str
    account: str
    workers: str
    threadlets: str
    weaver: str
    person: str
    joiner: str
    made_s: Count
    people: str = ""
    operators: str = ""
    lighthouse: str = ""
    viewers: str = ""
    admins: str = ""

    def of_role(self, role: PersonRole) -> str:
        """Return the key that signs the credentials of people with a role."""
        return {"viewer": self.viewers, "operator": self.operators, "admin": self.admins}[role]


class Credentials:
    """The keys of one run, and the credentials made from them; a worker's first are for joining."""

    def __init__(self, folder: Path, run: str, keys: Keys) -> None:
        self._folder = folder
        self._run = run
        self._keys = keys
        self._account = nats_jwt.public_key(keys.account)
        self._workers = nats_jwt.public_key(keys.workers)
        self._people = nats_jwt.public_key(keys.people)
        self.weaver_creds = folder / "weaver.creds"
        self.operator_creds = folder / "operator.creds"
        self.lighthouse_creds = folder / "lighthouse.creds"
        self.register = Register(folder)

    @classmethod
    def ensure(cls, state_dir: Path, run: str) -> "Credentials":
        """Read the keys under ``<state>/broker/keys``, or make them at the first start."""
        folder = private_folder(_folder(state_dir))
        path = folder / "keys.json"
        found = _read_keys(path)
        keys = _complete(found)
        if keys != found:
            write_private(path, msgspec.json.encode(keys).decode())
        credentials = cls(folder, run, keys)
        credentials._write_files()
        return credentials

    @classmethod
    def find(cls, state_dir: Path, run: str) -> "Credentials":
        """Read the keys of a Weaver that was started in this state folder, or raise StateError."""
        folder = _folder(state_dir)
        path = folder / "keys.json"
        keys = _read_keys(path)
        if keys != _complete(keys):
            have = "there are none" if keys is None else "these are of an earlier version"
            raise StateError(
                f"{path}: need the keys of a Weaver with the embedded broker, {have}; "
                "start `torchloom weaver` once"
            )
        return cls(folder, run, keys)

    @cached_property
    def grants(self) -> Grants:
        """What workers were granted; or StateError if the file cannot be read."""
        return Grants(self._folder / "granted.jsonl")

    @property
    def cluster_secret(self) -> str:
        """The secret by which servers of a cluster admit each other."""
        return self._keys.operator

    def server_config(self) -> str:
        """Return the lines of the server's config with the trusted operator and accounts."""
        run, keys = self._run, self._keys
        system, operator, threadlets = map(
            nats_jwt.public_key, (keys.system, keys.operator, keys.threadlets)
        )
        revoked = self.register.revoked
        people = [
            nats_jwt.scope(
                nats_jwt.public_key(keys.of_role(role)), role, *rights.person_rights(run, role)
            )
            for role in VERBS_OF
        ]
        services = nats_jwt.export("service", rights.SERVICES, many_replies=True)
        to_weaver, to_workers = rights.streams_to_weaver(run), rights.streams_to_workers(run)
        by_weaver, by_workers = rights.streams_to_people(run)
        bucket, bucket_asked = rights.bucket_info(run), rights.bucket_info_alias(run)
        accounts = {
            self._account: nats_jwt.account_claims(
                jetstream=True,
                exports=[services, *_streams(by_weaver)],
                imports=[
                    *_imports("stream", to_weaver, self._workers),
                    *_imports("service", rights.SERVER_REQUESTS, system),
                ],
            ),
            self._workers: nats_jwt.account_claims(
                jetstream=False,
                scopes=[nats_jwt.scope(threadlets, "threadlet", *rights.worker_rights(run))],
                exports=_streams(by_workers),
                imports=[
                    *_imports("service", rights.services_for_workers(run), self._account),
                    nats_jwt.import_from(self._account, "service", subjects.join(run), share=True),
                    *_imports("stream", to_workers, self._account),
                    *_imports("stream", rights.streams_to_lighthouse(run), self._account),
                ],
                revoked=revoked.workers,
            ),
            self._people: nats_jwt.account_claims(
                jetstream=False,
                scopes=people,
                imports=[
                    *_imports("service", rights.services_for_people(run), self._account),
                    *_imports("stream", by_weaver, self._account),
                    *_imports("stream", by_workers, self._workers),
                    nats_jwt.import_from(self._account, "service", bucket, called=bucket_asked),
                ],
                mapped={bucket: bucket_asked},
                revoked=revoked.people,
            ),
            system: nats_jwt.account_claims(
                jetstream=False,
                exports=[nats_jwt.export("service", name) for name in rights.SERVER_REQUESTS],
            ),
        }
        trusted = "".join(
            f"  {key}: {self._vouch(key, 'account', own)}\n" for key, own in accounts.items()
        )
        claims = {"type": "operator", "system_account": system}
        return (
            f"operator: {self._vouch(operator, 'torchloom', claims)}\n"
            f"system_account: {system}\n"
            "resolver: MEMORY\n"
            f"resolver_preload {{\n{trusted}}}\n"
        )

    def worker_jwt(self, worker: str, incarnation: int, public_key: str) -> str:
        """Return the JWT with which the owner of ``public_key`` acts as this incarnation."""
        claims = nats_jwt.scoped_user_claims(self._workers, [f"life:{incarnation}"])
        return nats_jwt.sign(self._keys.threadlets, public_key, worker, claims, self._keys.made_s)

    def person_creds_text(
        self, name: str, seed: str, role: PersonRole = "operator", expires_s: int = 0
    ) -> str:
        """Return the credentials with which the owner of ``seed`` acts as the person ``name``.

        ``expires_s``, in seconds of Unix time; 0: never.
        """
        claims = nats_jwt.scoped_user_claims(self._people, [f"{nats_jwt.ROLE_TAG}:{role}"])
        signer, key = self._keys.of_role(role), nats_jwt.public_key(seed)
        jwt = nats_jwt.sign(signer, key, name, claims, self._keys.made_s, expires_s)
        return nats_jwt.creds_text(jwt, seed)

    def join_creds_text(self, expires_s: int = 0) -> str:
        """Return the credentials with which processes join; ``expires_s`` as for a person's."""
        keys, allowed = self._keys, rights.joiner_rights(self._run)
        return self._creds("joiner", keys.joiner, keys.workers, allowed, expires_s)

    @property
    def joiner_is_revoked(self) -> bool:
        """Whether processes cannot join with these credentials."""
        return nats_jwt.public_key(self._keys.joiner) in self.register.revoked.workers

    def renew_joiner(self) -> None:
        """Revoke the credentials with which processes join, and make new ones."""
        self.register.revoke_joiner(nats_jwt.public_key(self._keys.joiner))
        self._keys = msgspec.structs.replace(self._keys, joiner=nats_jwt.new_seed("user"))
        write_private(self._folder / "keys.json", msgspec.json.encode(self._keys).decode())

    def _write_files(self) -> None:
        keys, allowed = self._keys, rights.lighthouse_rights(self._run)
        lighthouse = self._creds("lighthouse", keys.lighthouse, keys.workers, allowed)
        weaver = self._creds("weaver", keys.weaver, keys.account, rights.WEAVER)
        person = self.person_creds_text(subjects.DEFAULT_PERSON, keys.person, "admin")
        _keep_private(self.weaver_creds, weaver)
        _keep_private(self.lighthouse_creds, lighthouse)
        _keep_private(self.operator_creds, person)

    def _creds(
        self, name: str, seed: str, account: str, allowed: Rights, expires_s: int = 0
    ) -> str:
        key, claims = nats_jwt.public_key(seed), nats_jwt.user_claims(*allowed)
        jwt = nats_jwt.sign(account, key, name, claims, self._keys.made_s, expires_s)
        return nats_jwt.creds_text(jwt, seed)

    def _vouch(self, key: str, name: str, claims: Claims) -> str:
        return nats_jwt.sign(self._keys.operator, key, name, claims, self._keys.made_s)


def check_shared_keys(state_dir: Path) -> None:
    """Raise BrokerError unless there are keys: with own ones a host would join no cluster."""
    folder = _folder(state_dir)
    if not (folder / "keys.json").exists():
        raise BrokerError(
            f"[broker] peers: need the keys that all of these hosts share, {folder}: make them on "
            "one host with `torchloom broker keys`, and copy that folder to the others"
        )


def _keep_private(path: Path, text: str) -> None:
    """Write a file unless it is up to date: a Weaver also starts on a full disk."""
    with suppress(OSError, ValueError):
        if path.read_text(encoding="utf-8") == text:
            return
    write_private(path, text)


def _folder(state_dir: Path) -> Path:
    return state_dir / "broker" / "keys"


def _streams(names: Iterable[str]) -> list[Claims]:
    return [nats_jwt.export("stream", subject) for subject in names]


def _imports(kind: Literal["stream", "service"], names: Iterable[str], owner: str) -> list[Claims]:
    return [nats_jwt.import_from(owner, kind, subject) for subject in names]


def _checked(keys: Keys) -> Keys:
    """Return the keys if all are valid; otherwise nkeys raises an error."""
    for name in _KIND_OF:
        if name not in _LATER or getattr(keys, name):
            nats_jwt.public_key(getattr(keys, name))
    return keys


def _read_keys(path: Path) -> Keys | None:
    try:
        return _checked(msgspec.json.decode(path.read_bytes(), type=Keys))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from None
    except (*UNREADABLE, nkeys.NkeysError, ValueError) as error:
        raise StateError(f"{path}: the keys are damaged: {error}") from None


def _complete(keys: Keys | None) -> Keys:
    """Return the keys with the missing ones generated."""
    seeds = {
        name: getattr(keys, name, "") or nats_jwt.new_seed(kind) for name, kind in _KIND_OF.items()
    }
    return Keys(made_s=keys.made_s if keys else int(time.time()), **seeds)
