"""What one host of a cluster revokes, the servers of the others refuse as well."""

from types import SimpleNamespace

import pytest

from torchloom_core.live.transport.security import grants as grants_module
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.live.transport.security.register import Register, Shared
from torchloom_core.live.weaver import access_sharing
from torchloom_core.live.weaver.access_sharing import AccessSharing, merge_access
from torchloom_core.wire.access import Issued


class Host:
    """A host's list, and how often its server has loaded it."""

    def __init__(self, folder):
        folder.mkdir()
        self.register = Register(folder)
        self.grants = Grants(folder / "granted.jsonl")
        self.credentials = self
        self.loads = 0

    def reload(self):
        self.loads += 1
        self.register.loaded = self.register.revoked


class Bucket:
    """Replaces the run's bucket."""

    def __init__(self):
        self.values = {}

    async def get(self, key):
        return self.values.get(key)

    async def put(self, key, value):
        self.values[key] = value

    async def change(self, key, change):
        self.values |= {key: fresh} if (fresh := await change(self.values.get(key))) else {}

    async def items(self, prefix):
        own = f"{prefix}."
        return {k.removeprefix(own): v for k, v in self.values.items() if k.startswith(own)}


@pytest.fixture
def hosts(tmp_path):
    return [Host(tmp_path / name) for name in "abc"]


@pytest.fixture
def bucket():
    return Bucket()


async def settle(bucket, hosts):
    for host in 2 * hosts:
        await merge_access(bucket, host)


def issued(name, key):
    return Issued(name=name, role="viewer", key=f"U{key * 55}", issued_s=1)


async def test_a_person_is_known_and_revoked_on_all_hosts(bucket, hosts):
    first, _, last = hosts
    first.register.note(issued("alice", "A"))
    last.register.note(issued("bo", "B"))
    await settle(bucket, hosts)
    assert [len(host.register.people()) for host in hosts] == [2, 2, 2]
    assert last.register.revoke_person("alice") == 1
    await settle(bucket, hosts)
    assert [host.loads for host in hosts] == [1, 1, 1]
    assert [host.register.people()[0].revoked_s > 0 for host in hosts[:2]] == [True, True]


async def test_a_worker_that_was_let_in_again_stays_so(bucket, hosts):
    first, second, _ = hosts
    first.register.revoke_worker("g1-0", ["U" + "C" * 55])
    await settle(bucket, hosts)
    assert all(host.register.revoked.blocks("g1-0") for host in hosts)
    assert second.register.unblock("g1-0")
    await settle(bucket, hosts)
    assert not any(host.register.revoked.blocks("g1-0") for host in hosts)
    assert all("U" + "C" * 55 in host.register.revoked.workers for host in hosts)


async def test_a_damaged_entry_is_replaced(bucket, hosts):
    bucket.values["access"] = b"no json"
    hosts[0].register.note(issued("alice", "A"))
    await merge_access(bucket, hosts[0])
    assert bucket.values["access"] != b"no json"
    assert not hosts[0].register.merge(Shared())


async def test_the_next_leader_knows_what_was_granted(bucket, hosts, monkeypatch):
    monkeypatch.setattr(access_sharing, "PAGE", 3)
    monkeypatch.setattr(access_sharing, "MOST_SHARED", 6)
    monkeypatch.setattr(grants_module, "MOST_GRANTS", 12)
    leases = [SimpleNamespace(is_held=False, is_sure=True) for _ in hosts]
    sharings = [
        AccessSharing(bucket, lease, host) for lease, host in zip(leases, hosts, strict=True)
    ]
    granted = 0
    for leader in (0, 1, 0):
        leases[leader].is_held = True
        for count in (2, 5, 0, 1):  # a page is begun, another is filled, none, and one more
            for number in range(granted, granted + count):
                hosts[leader].credentials.grants.add((f"g{number}-0", 1), f"key{number}")
            granted += count
            for sharing in 2 * sharings:
                await sharing.merge()
        leases[leader].is_held = False
        lists = [host.credentials.grants.newest(1000) for host in hosts]
        assert lists[0] == lists[1] == lists[2]
        assert lists[0][-1] == (f"g{granted - 1}-0", 1, f"key{granted - 1}")
    assert len(lists[0]) == 12
    assert sum(map(bool, (await bucket.items("granted")).values())) == 2
    late = Grants()
    await access_sharing.SharedGrants(bucket, late).read()
    assert late.newest(12) == lists[0][-6:]
