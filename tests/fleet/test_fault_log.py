"""Faults come in any order and are remembered in theirs, each once, for a while."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.faults import added
from torchloom_core.live.fleet.fault_log import FaultLog
from torchloom_core.wire.events import Fault


def fault(ts_s: int, name: str = "", node: str = "n1") -> Fault:
    return Fault(worker="w1", node=node, kind="xid", ts_ns=ts_s * SECOND_NS, id=name or f"e{ts_s}")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=30), st.integers(0, 60))
def test_faults_are_remembered_in_order_and_once_for_memory_s(faults, now_s):
    log, known = FaultLog(memory_s=20.0), {}
    for ts_s, number in faults:
        name = f"e{number}"
        new = fault(ts_s, name, node=("n0", "n1", "")[number % 3])
        assert log.add(new) == (name not in known)
        known.setdefault(name, ts_s)
    log.forget_old(now_s * SECOND_NS)
    expected = {name: ts_s for name, ts_s in known.items() if ts_s >= now_s - 20}
    assert {f.id: f.ts_ns // SECOND_NS for f in log.faults} == expected
    assert [f.ts_ns for f in log.faults] == sorted(f.ts_ns for f in log.faults)
    for place in ("n0", "n1", "w1"):
        there = tuple(f for f in log.faults if (f.node or f.worker) == place)
        assert log.faults_of.get(place, ()) == there
    assert all(log.faults_of.values())
    assert sorted(f.id for f in log.table.values()) == sorted(f.id for f in log.faults)


def test_a_forgotten_fault_can_be_added_again():
    log = FaultLog(memory_s=20.0)
    log.add(fault(1))
    log.forget_old(100 * SECOND_NS)
    assert log.faults == ()
    assert log.add(fault(1))


def test_the_same_tuple_is_returned_until_something_changes():
    log = FaultLog(memory_s=20.0)
    log.add(fault(1))
    before = log.faults
    log.forget_old(2 * SECOND_NS)
    assert log.faults is before
    log.add(fault(2))
    assert log.faults is not before


def test_the_faults_of_a_place_are_the_same_tuple_until_something_changes_there():
    log = FaultLog(memory_s=20.0)
    for second, node in enumerate(("n1", "n2", "n3"), start=1):
        log.add(fault(second, node=node))
    before = log.faults_of
    log.add(fault(4, node="n2"))
    log.forget_old(22 * SECOND_NS)
    assert log.faults_of["n3"] is before["n3"]
    assert (log.faults_of["n2"], before["n2"]) == (
        (fault(2, node="n2"), fault(4, node="n2")),
        (fault(2, node="n2"),),
    )
    assert set(before) - set(log.faults_of) == {"n1"}


def test_places_come_in_the_order_of_their_changes():
    log, nodes = FaultLog(memory_s=20.0), [f"n{number}" for number in (3, 1, 4, 0, 5, 9, 2, 6)]
    for second, node in enumerate(nodes, start=1):
        log.add(fault(second, node=node))
    assert list(log.faults_of) == nodes


times = st.integers(0, 50)


@given(st.lists(st.tuples(times, st.booleans()), max_size=40), st.integers(1, 30))
def test_added_faults_are_returned_whatever_was_forgotten(faults, memory_s):
    log, before, now_s = FaultLog(memory_s=memory_s), (), 0
    for number, (ts_s, is_looked_at) in enumerate(faults):
        log.add(fault(ts_s, f"e{number}"))
        if is_looked_at:
            now_s = max(now_s, ts_s)
            log.forget_old(now_s * SECOND_NS)
            assert added(before, log.faults) == [f for f in log.faults if f not in before]
            before = log.faults


def test_nothing_older_than_the_news_is_looked_at():
    faults = [fault(second) for second in range(1000)]

    class Counting(tuple):
        looked_at = 0

        def __getitem__(self, row):
            Counting.looked_at += 1
            return super().__getitem__(row)

    before = Counting(faults)
    assert added(before, (*faults, fault(1000))) == [fault(1000)]
    assert Counting.looked_at < 20


def test_faults_of_a_place_are_copied_on_read_and_only_after_a_change():
    log = FaultLog(memory_s=1000.0)
    for number in range(5):
        log.add(fault(number))
        log.add(fault(number, f"x{number}", node="n2"))
    before = log.faults_of
    log.add(fault(9))
    assert log._tuple_of["n1"] is before["n1"]
    now = log.faults_of
    assert now["n2"] is before["n2"]
    assert [f.id for f in now["n1"]] == ["e0", "e1", "e2", "e3", "e4", "e9"]
