"""What one host of a cluster revokes, the servers of the others refuse as well."""

import pytest

from torchloom_core.live.transport.security.register import Register, Shared
from torchloom_core.live.weaver.access_sharing import merge_access
from torchloom_core.wire.access import Issued


class Host:
    """A host's list, and how often its server has loaded it."""

    def __init__(self, folder):
        folder.mkdir()
        self.register = Register(folder)
        self.credentials = self
        self.loads = 0

    def reload(self):
        self.loads += 1


class Bucket:
    """Replaces the run's bucket."""

    value = None

    async def get(self, key):
        return self.value

    async def put(self, key, value):
        self.value = value


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
    assert [host.loads for host in hosts] == [1, 1, 0]
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
    bucket.value = b"no json"
    hosts[0].register.note(issued("alice", "A"))
    await merge_access(bucket, hosts[0])
    assert bucket.value != b"no json"
    assert not hosts[0].register.merge(Shared())
