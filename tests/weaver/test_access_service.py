"""The lists of what is revoked do not grow without an end."""

import asyncio
from types import SimpleNamespace

import pytest

from torchloom_core.config.services import Join
from torchloom_core.floor.errors import BrokerError, MessageError, StateError
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.live.transport.security.register import Register, Revoked, Shared
from torchloom_core.live.weaver import access_service
from torchloom_core.live.weaver.access_service import AccessService
from torchloom_core.wire.access import Issued, Revoke


async def test_one_process_that_floods_under_ever_new_names_fills_no_list(tmp_path, monkeypatch):
    monkeypatch.setattr(access_service, "MOST_CUT", 3)
    register = Register(tmp_path)
    credentials = SimpleNamespace(register=register, grants=Grants(), worker_jwt=lambda *_: "")
    broker = SimpleNamespace(credentials=credentials, reload=lambda: None)
    dropped = []

    async def drop(worker):
        dropped.append(worker)

    access = AccessService("run", broker, Join(), lambda expires_s: None, drop)
    for number in range(3):
        await access.cut(f"evil-{number}")
    with pytest.raises(MessageError, match=r"need fewer than 3 .* `torchloom credentials revoke"):
        await access.cut("evil-3")
    assert dropped == ["evil-0", "evil-1", "evil-2"]
    assert register.unblock("evil-0")


def test_what_has_expired_is_revoked_no_longer_whichever_host_knows_it(tmp_path):
    register = Register(tmp_path)
    keys = ["U" + letter * 55 for letter in "AB"]
    for key, expires_s in zip(keys, (1, 0), strict=True):
        register.note(Issued(name="ann", role="viewer", key=key, issued_s=1, expires_s=expires_s))
    assert register.revoke_person("ann") == 2
    assert list(register.revoked.people) == keys[1:]
    register.merge(Shared(revoked=Revoked(people={keys[0]: 1})))
    assert list(register.revoked.people) == keys[1:]


def test_a_line_that_a_full_disk_cut_short_does_not_swallow_the_next(tmp_path):
    register = Register(tmp_path)
    people = [
        Issued(name=name, role="viewer", key="U" + name * 55, issued_s=1) for name in ("A", "B")
    ]
    register.note(people[0])
    path = tmp_path / "people.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    register.note(people[1])
    assert register.people() == people[1:]
    assert register.revoke_person("B") == 1


def service(register, reload=lambda: None):
    credentials = SimpleNamespace(register=register, grants=Grants(), worker_jwt=None)
    broker = SimpleNamespace(credentials=credentials, reload=reload)
    return AccessService("run", broker, Join(), lambda expires_s: None, None)


async def test_a_revocation_whose_write_failed_is_carried_out_when_it_is_repeated(
    tmp_path, monkeypatch
):
    register, loads = Register(tmp_path), []
    register.note(Issued(name="ann", role="viewer", key="U" + "A" * 55, issued_s=1))
    access = service(register, lambda: loads.append(len(register.revoked.people)))
    wanted = Revoke(kind="person", name="ann")
    register._path.with_name("revoked.json.new").mkdir()
    with pytest.raises(StateError):
        await access.revoke(wanted)
    assert not loads
    register._path.with_name("revoked.json.new").rmdir()
    assert await access.revoke(wanted) == "revoked 1 credentials of ann"
    await access.revoke(wanted)
    assert loads == [1, 1]


async def test_a_revocation_is_answered_once_the_cluster_has_it(tmp_path):
    register, shared = Register(tmp_path), []
    register.note(Issued(name="ann", role="viewer", key="U" + "A" * 55, issued_s=1))
    access = service(register)

    async def share():
        shared.append(dict(register.revoked.people))
        if len(shared) > 1:
            raise BrokerError("no leader")

    access.share = share
    assert await access.revoke(Revoke(kind="person", name="ann")) == "revoked 1 credentials of ann"
    assert len(shared[0]) == 1
    assert "other hosts do not have this yet" in await access.revoke(
        Revoke(kind="worker", name="g0-0")
    )


async def test_a_renewal_of_join_json_that_failed_is_tried_again_within_a_minute(
    tmp_path, monkeypatch
):
    waits, fails = [], iter((False, True, False))

    async def sleep(seconds):
        waits.append(seconds)
        if len(waits) > 2:
            raise asyncio.CancelledError

    def write(expires_s):
        if next(fails):
            raise StateError("join.json: cannot be written")

    broker = SimpleNamespace(
        credentials=SimpleNamespace(grants=Grants(), worker_jwt=None, joiner_is_revoked=False)
    )
    access = AccessService("run", broker, Join(expires_s=86_400.0), write, None)
    access.write_join_file()
    monkeypatch.setattr(access_service.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await access.renew_join_file()
    assert waits == [43_200.0, 60.0, 43_200.0]
