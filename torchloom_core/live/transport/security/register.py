"""Which people have credentials, and which credentials are revoked: files beside the keys.

``people.jsonl`` has one line for each credentials file, written by the command that made it;
``revoked.json`` what the server refuses, written by the Weaver.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import write_private
from torchloom_core.wire.access import Issued
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import Count

_line = msgspec.json.Decoder(Issued)


class Revoked(msgspec.Struct, kw_only=True):
    """``revoked.json``: public keys and when they were revoked, in seconds of Unix time.

    ``blocked`` and ``undone`` have names of workers, and when, in nanoseconds; the later one
    counts.
    """

    people: dict[str, Count] = {}
    workers: dict[str, Count] = {}
    blocked: dict[str, int] = {}
    undone: dict[str, int] = {}

    def blocks(self, worker: str) -> bool:
        """Return whether a worker of this name is given no credentials."""
        return self.blocked.get(worker, 0) > self.undone.get(worker, 0)

    def with_those_of(self, other: "Revoked") -> "Revoked":
        """Return what either of two hosts has revoked, by the later time."""
        merged = Revoked()
        for name in self.__struct_fields__:
            table = getattr(merged, name)
            for source in (getattr(self, name), getattr(other, name)):
                for key, moment in source.items():
                    table[key] = max(moment, table.get(key, 0))
        return merged


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What the hosts of a cluster share: who has credentials, and which are revoked."""

    people: tuple[Issued, ...] = ()
    revoked: Revoked = msgspec.field(default_factory=Revoked)


class Register:
    """The two files in ``folder``; or StateError if one cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._people = folder / "people.jsonl"
        self._path = folder / "revoked.json"
        self.revoked = self._read()
        self.loaded = self.revoked
        """What the server has loaded."""

    def note(self, issued: Issued) -> None:
        """Append a person's new credentials."""
        try:
            with open(self._people, "a+b", opener=_private) as file:
                if _is_torn(file):
                    file.write(b"\n")
                file.write(msgspec.json.encode(issued) + b"\n")
        except OSError as error:
            raise StateError(f"{self._people}: cannot be written: {error.strerror}") from None

    def people(self) -> list[Issued]:
        """Return all credentials of people, oldest first."""
        try:
            lines = self._people.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(f"{self._people}: cannot be read: {error.strerror}") from None
        found = []
        for line in lines:
            try:
                issued = _line.decode(line)
            except UNREADABLE:  # cut short by a full disk
                continue
            revoked_s = self.revoked.people.get(issued.key, 0)
            found.append(msgspec.structs.replace(issued, revoked_s=revoked_s))
        return found

    def revoke_person(self, name: str) -> int:
        """Revoke all credentials of a person; return how many were valid."""
        valid = [one.key for one in self.people() if one.name == name and not one.revoked_s]
        now_s = int(time.time())
        self._add(Revoked(people=dict.fromkeys(valid, now_s)))
        return len(valid)

    def revoke_worker(self, name: str, keys: Iterable[str]) -> None:
        """Revoke the credentials of a worker's incarnations, and give its name no others."""
        workers = dict.fromkeys(keys, int(time.time()))
        self._add(Revoked(workers=workers, blocked={name: time.time_ns()}))

    def revoke_joiner(self, key: str) -> None:
        """Revoke the key with which processes joined until now."""
        self._add(Revoked(workers={key: int(time.time())}))

    def unblock(self, name: str) -> bool:
        """Give credentials to a worker of this name again; return whether it was blocked."""
        if not self.revoked.blocks(name):
            return False
        self._add(Revoked(undone={name: time.time_ns()}))
        return True

    def merge(self, other: Shared) -> bool:
        """Take in what another host has; return whether the server has to load the list."""
        known = {one.key for one in self.people()}
        for issued in other.people:
            if issued.key not in known:
                self.note(issued)
        self._add(other.revoked)
        return self.revoked != self.loaded

    def shared(self) -> Shared:
        """Return what other hosts need to know."""
        return Shared(people=tuple(self.people()), revoked=self.revoked)

    def _without_expired(self, revoked: Revoked) -> Revoked:
        """Leave out people's credentials that have expired: the server refuses them anyway."""
        now_s = int(time.time())
        over = {one.key for one in self.people() if 0 < one.expires_s <= now_s}
        people = {key: at_s for key, at_s in revoked.people.items() if key not in over}
        return msgspec.structs.replace(revoked, people=people)

    def _add(self, more: Revoked) -> None:
        """Write the list with ``more`` in it."""
        merged = self._without_expired(self.revoked.with_those_of(more))
        if merged != self.revoked:
            write_private(self._path, msgspec.json.encode(merged).decode())
            self.revoked = merged  # not before it is written: a repeated request tries again

    def _read(self) -> Revoked:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Revoked)
        except FileNotFoundError:
            return Revoked()
        except OSError as error:
            raise StateError(f"{self._path}: cannot be read: {error.strerror}") from None
        except UNREADABLE as error:  # to go on would let the revoked in again
            raise StateError(
                f"{self._path}: the list of revoked credentials is damaged: {error}; restore it, "
                "or delete it to revoke none"
            ) from None


def _is_torn(file: IO[bytes]) -> bool:
    """Return whether the last line was cut short, as by a full disk: another would end with it."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
