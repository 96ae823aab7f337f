"""Who may do what on the embedded broker: keys, the server's trust, and everyone's credentials.

The server runs in operator mode: it trusts one operator, which vouches for three accounts: the
system's, the run's (Weaver and people; all streams and the key-value bucket lie there), and the
workers'. Two accounts keep apart what subject permissions cannot: a publisher may name any
reply subject, and in one account the server's own PubAck would land there, be it a key of the
bucket or a control verb. Between the accounts only what is listed here passes, and answers go
back to the workers' account alone.

Rights of a Threadlet are not in its own JWT but in the scope of the key that signed it, so a
worker's JWT can only say its name.

================  =======================================  =====================================
identity          may publish                              may subscribe
================  =======================================  =====================================
Weaver            everything                               everything
person (CLI)      ``tl.ctl.<run>.>``, ``$SRV.>``,          what is said on the run, ``_INBOX.>``
                  reads of the key-value bucket
worker            its own telemetry, events, acks; pulls   ``tl.roll.<run>``, its own inbox
                  and acknowledges its own commands
joiner            ``tl.join.<run>``                        ``_INBOX_JOIN_<run>.>``
================  =======================================  =====================================
"""

import os
import time
from pathlib import Path

import msgspec

from torchloom_core import nats_jwt, subjects
from torchloom_core.errors import StateError

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Seeds of every identity the Weaver keeps, made once per state folder."""

    operator: str
    system: str
    account: str
    workers: str
    threadlets: str
    weaver: str
    person: str
    joiner: str
    made_s: int


class Credentials:
    """The keys of one run, and what is minted from them.

    Attributes
    ----------
    weaver_creds, operator_creds : Path
        Credentials files of the Weaver and of people at the command line.
    join_creds_text : str
        Text of the credentials with which a worker may ask for its own.
    """

    def __init__(self, folder: Path, run: str, keys: Keys) -> None:
        self._run = run
        self._keys = keys
        self._account = nats_jwt.public_key(keys.account)
        self._workers = nats_jwt.public_key(keys.workers)
        self.weaver_creds = folder / "weaver.creds"
        self.operator_creds = folder / "operator.creds"
        self.join_creds_text = self._creds(
            "joiner", keys.joiner, keys.workers, *_joiner_rights(run)
        )

    @classmethod
    def ensure(cls, state_dir: Path, run: str) -> "Credentials":
        """Read the keys under ``<state>/broker/keys``, or make them at the first start.

        Raises
        ------
        StateError
            If the folder cannot be read or written, or the keys in it are damaged.
        """
        folder = private_folder(state_dir / "broker" / "keys")
        credentials = cls(folder, run, _keys(folder / "keys.json"))
        credentials._write_files()
        return credentials

    def server_config(self) -> str:
        """Return the lines of the server's config that say whom to trust."""
        system = nats_jwt.public_key(self._keys.system)
        operator = nats_jwt.public_key(self._keys.operator)
        shares = [nats_jwt.share("service", s, self._account) for s in _asked_by_workers(self._run)]
        pull = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.command_stream(self._run)}.*"
        shares.append(nats_jwt.share("service", pull, self._account, many_replies=True))
        shares.append(nats_jwt.share("stream", subjects.roll_call(self._run), self._account))
        heard = [nats_jwt.share("stream", s, self._workers) for s in _heard_of_workers(self._run)]
        scope = nats_jwt.scope(
            nats_jwt.public_key(self._keys.threadlets),
            "threadlet",
            *worker_rights(self._run, "{{name()}}"),
        )
        accounts = {
            self._account: nats_jwt.account_claims(
                jetstream=True,
                exports=[export for export, _ in shares],
                imports=[taken for _, taken in heard],
            ),
            self._workers: nats_jwt.account_claims(
                jetstream=False,
                scopes=[scope],
                exports=[export for export, _ in heard],
                imports=[taken for _, taken in shares],
            ),
            system: nats_jwt.account_claims(jetstream=False),
        }
        trusted = "".join(
            f"  {key}: {self._vouch(key, 'account', claims)}\n" for key, claims in accounts.items()
        )
        return (
            f"operator: {self._vouch(operator, 'torchloom', nats_jwt.operator_claims(system))}\n"
            f"system_account: {system}\n"
            "resolver: MEMORY\n"
            f"resolver_preload {{\n{trusted}}}\n"
        )

    def worker_jwt(self, worker: str, public_key: str) -> str:
        """Return the JWT that lets the owner of ``public_key`` act as ``worker``, and only so."""
        claims = nats_jwt.scoped_user_claims(self._workers)
        return nats_jwt.sign(self._keys.threadlets, public_key, worker, claims, self._keys.made_s)

    def _write_files(self) -> None:
        weaver = self._creds("weaver", self._keys.weaver, self._keys.account, [">"], [">"])
        person = self._creds(
            "operator", self._keys.person, self._keys.account, *_person_rights(self._run)
        )
        write_private(self.weaver_creds, weaver)
        write_private(self.operator_creds, person)

    def _creds(
        self, name: str, seed: str, account: str, publish: list[str], subscribe: list[str]
    ) -> str:
        key, claims = nats_jwt.public_key(seed), nats_jwt.user_claims(publish, subscribe)
        return nats_jwt.creds_text(
            nats_jwt.sign(account, key, name, claims, self._keys.made_s), seed
        )

    def _vouch(self, key: str, name: str, claims: nats_jwt.Claims) -> str:
        return nats_jwt.sign(self._keys.operator, key, name, claims, self._keys.made_s)


def worker_rights(run: str, worker: str) -> tuple[list[str], list[str]]:
    """Return the subjects a worker may publish and those it may subscribe."""
    stream = subjects.command_stream(run)
    publish = [
        subjects.telemetry(run, worker),
        subjects.event(run, worker),
        subjects.ack(run, worker),
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{worker}",
        f"$JS.ACK.{stream}.{worker}.>",
    ]
    return publish, [subjects.roll_call(run), f"{subjects.inbox_prefix(run, worker)}.>"]


def join_inbox(run: str) -> str:
    """Return the prefix of the subjects on which a joiner is answered."""
    return f"_INBOX_JOIN_{run}"


def private_folder(path: Path) -> Path:
    """Make a folder only its owner can enter, and return it.

    Raises
    ------
    StateError
        If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_PRIVATE_FOLDER)
    except OSError as error:
        raise StateError(f"state folder {path}: cannot be written: {error.strerror}") from None
    return path


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; only its owner can read it.

    Raises
    ------
    StateError
        If it cannot be written.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None


def _asked_by_workers(run: str) -> list[str]:
    """Subjects on which the run's account serves the workers' account."""
    return [
        subjects.ack(run),
        subjects.event(run),
        subjects.join(run),
        f"$JS.ACK.{subjects.command_stream(run)}.*.>",
    ]


def _heard_of_workers(run: str) -> list[str]:
    """Subjects on which the run's account hears the workers' account."""
    return [subjects.telemetry(run)]


def _joiner_rights(run: str) -> tuple[list[str], list[str]]:
    return [subjects.join(run)], [f"{join_inbox(run)}.>"]


def _person_rights(run: str) -> tuple[list[str], list[str]]:
    """Rights for the command line and for a plain ``nats req``, ``nats sub``, ``nats kv get``."""
    kv = f"KV_{subjects.bucket(run)}"
    publish = [
        subjects.control(run, ">"),
        "$SRV.>",
        f"$JS.API.STREAM.INFO.{kv}",
        f"$JS.API.DIRECT.GET.{kv}.>",
    ]
    heard = [
        subjects.telemetry(run),
        subjects.event(run),
        subjects.command(run),
        subjects.ack(run),
        subjects.roll_call(run),
        subjects.out(run),
    ]
    return publish, [*heard, "_INBOX.>"]


def _keys(path: Path) -> Keys:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Keys)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise StateError(f"{path}: the keys are damaged: {error}") from None
    keys = Keys(
        operator=nats_jwt.new_seed("operator"),
        system=nats_jwt.new_seed("account"),
        account=nats_jwt.new_seed("account"),
        workers=nats_jwt.new_seed("account"),
        threadlets=nats_jwt.new_seed("account"),
        weaver=nats_jwt.new_seed("user"),
        person=nats_jwt.new_seed("user"),
        joiner=nats_jwt.new_seed("user"),
        made_s=int(time.time()),
    )
    write_private(path, msgspec.json.encode(keys).decode())
    return keys
