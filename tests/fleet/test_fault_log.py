"""Faults come in any order and are remembered in theirs, each once, for a while."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.clock import SECOND_NS
from torchloom_core.fleet.fault_log import Fault, FaultLog


def fault(ts_s: int, name: str = "") -> Fault:
    return Fault(worker="", node="n1", kind="xid", ts_ns=ts_s * SECOND_NS, id=name or f"e{ts_s}")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=30), st.integers(0, 60))
def test_what_is_told_is_remembered_in_order_and_once_as_long_as_the_memory_lasts(told, now_s):
    log, known = FaultLog(memory_s=20.0), {}
    for ts_s, number in told:
        name = f"e{number}"
        assert log.add(fault(ts_s, name)) == (name not in known)
        known.setdefault(name, ts_s)
    log.forget_old(now_s * SECOND_NS)
    kept = {name: ts_s for name, ts_s in known.items() if ts_s >= now_s - 20}
    assert {f.id: f.ts_ns // SECOND_NS for f in log.faults} == kept
    assert [f.ts_ns for f in log.faults] == sorted(f.ts_ns for f in log.faults)


def test_a_fault_that_was_forgotten_can_be_told_again():
    log = FaultLog(memory_s=20.0)
    log.add(fault(1))
    log.forget_old(100 * SECOND_NS)
    assert log.faults == ()
    assert log.add(fault(1))


def test_the_same_tuple_is_told_until_something_changes():
    log = FaultLog(memory_s=20.0)
    log.add(fault(1))
    before = log.faults
    log.forget_old(2 * SECOND_NS)
    assert log.faults is before
    log.add(fault(2))
    assert log.faults is not before
