"""What the trainer does, as it records it and as its sidecar sees it."""

import gc
import time
import weakref

import pytest
from torch._C import _distributed_c10d

from torchloom_threadlet.adapters.torchft.measurements import stamp_waits
from torchloom_threadlet.flight_recorder import (
    Collectives,
    collectives,
    flight_recorder,
    read_collectives,
)
from torchloom_threadlet.ipc import COMPUTE, Phase, Samples
from torchloom_threadlet.sidecar.telemetry import gauges, phase_fields
from torchloom_threadlet.trainer.phases import Phases
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer

SECOND_NS = 10**9
NO_PROCESS = 2**22 + 1
"""Above any process's number."""


@pytest.fixture
def clock(monkeypatch):
    """Let a test set the monotonic clock, in nanoseconds."""
    now = [SECOND_NS]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    return now


def test_the_time_of_overlapping_waits_counts_once(clock):
    phases = Phases()
    phases.begin("commit")
    clock[0] += 1 * SECOND_NS
    phases.begin("quorum")
    clock[0] += 2 * SECOND_NS
    phases.end("quorum")
    clock[0] += 3 * SECOND_NS
    phases.end("commit")
    clock[0] += 4 * SECOND_NS
    assert phases.waited_ns == 6 * SECOND_NS


def test_a_wait_becomes_the_phase_once_it_lasts(clock):
    phases = Phases()
    assert phases.present() is None
    phases.quorum_id = 3
    phases.begin("allreduce")
    assert phases.present().name == COMPUTE
    clock[0] += SECOND_NS
    assert phases.present() == Phase(name="allreduce", since_ns=SECOND_NS, quorum_id=3)
    phases.end("allreduce")
    assert phases.present() == Phase(name=COMPUTE, since_ns=2 * SECOND_NS, quorum_id=3)


def test_a_managers_waits_are_recorded_and_its_works_released(clock):
    class Work:
        def wait(self, timeout=None):
            clock[0] += 5 * SECOND_NS
            return timeout

    class Manager:
        def start_quorum(self):
            clock[0] += SECOND_NS

        wait_quorum = should_commit = start_quorum

        def allreduce(self, tensor):
            return Work()

    phases, manager = Phases(), Manager()
    stamp_waits(manager, phases, phases)
    for call in (manager.start_quorum, manager.wait_quorum, manager.should_commit):
        call()
    work = manager.allreduce(None)
    assert phases.waited_ns == 3 * SECOND_NS
    assert work.wait(7) == 7
    assert phases.waited_ns == 8 * SECOND_NS
    assert manager.allreduce(None).wait(7) == 7  # referenced by nothing but the call
    present = weakref.ref(work)
    gc.disable()
    try:
        del work
        assert present() is None
    finally:
        gc.enable()


def test_compute_time_is_the_step_minus_the_waits():
    samples = SampleBuffer()
    samples.waiting.append((1, 1 * SECOND_NS, {"wait_s": 0.25}))
    samples.waiting.append((2, 3 * SECOND_NS, {"wait_s": 0.5}))
    samples.waiting.append((3, 4 * SECOND_NS, {"wait_s": 2.0}))
    samples.waiting.append((4, 5 * SECOND_NS, {"wait_s": 0.5, "compute_s": 0.1}))
    samples.waiting.append((5, 6 * SECOND_NS, {}))
    rows = [row for _, row in samples.take(entered_ns=0)]
    assert [row.get("compute_s") for row in rows] == [None, 1.5, 0.0, 0.1, None]


def seen(name, since_s, looked_s):
    phase = Phase(name=name, since_ns=since_s * SECOND_NS, quorum_id=3)
    return Samples(
        state="training", step=1, progress_ns=0, looked_ns=looked_s * SECOND_NS, phase=phase
    )


def test_a_waiting_trainer_is_distinguished_from_a_computing_one():
    waits = seen("allreduce", since_s=10, looked_s=50)
    assert gauges(NO_PROCESS, waits, 51 * SECOND_NS) == {
        "trainer_waiting_s": 41.0,
        "quorum_id": 3.0,
    }
    assert phase_fields(NO_PROCESS, waits, 51 * SECOND_NS) == {
        "phase": "allreduce",
        "phase_s": 41.0,
        "quorum_id": 3,
    }
    computes = seen(COMPUTE, since_s=10, looked_s=10)
    assert gauges(NO_PROCESS, computes, 51 * SECOND_NS)["trainer_waiting_s"] == 0.0
    assert phase_fields(NO_PROCESS, computes, 51 * SECOND_NS)["phase_s"] == 41.0


def test_a_wait_that_the_trainer_no_longer_confirms_is_over():
    waits = seen("allreduce", since_s=10, looked_s=50)
    assert gauges(NO_PROCESS, waits, 54 * SECOND_NS)["trainer_waiting_s"] == 0.0
    assert phase_fields(NO_PROCESS, waits, 54 * SECOND_NS)["phase"] == COMPUTE


def test_without_a_recorded_phase_none_is_reported():
    unknown = Samples(state="training", step=1, progress_ns=0)
    assert gauges(NO_PROCESS, unknown, SECOND_NS) == {}
    assert phase_fields(NO_PROCESS, unknown, SECOND_NS) == {}


STATUS = (
    '"pg_status": {"0": {"last_completed_collective": "2", "last_enqueued_collective": "2", '
    '"last_started_collective": "-1"}, "1": {"last_completed_collective": "4", '
    '"last_enqueued_collective": "8", "last_started_collective": "-1"}}'
)
ENTRY = (
    '{"pg_id": %d, "record_id": %d, "retired": %s, "profiling_name": "gloo:all_reduce", '
    '"input_sizes": [[%d]]}'
)


def test_the_flight_recorder_shows_the_incomplete_collective():
    entries = ", ".join(
        ENTRY % entry for entry in ((1, 9, "false", 11), (1, 8, "false", 10), (0, 1, "true", 5))
    )
    assert read_collectives(f'{{"entries": [{entries}], {STATUS}}}') == Collectives(
        collective="gloo:all_reduce [[10]]", enqueued_seq=8, completed_seq=4
    )


NCCL_DUMP = (
    '{"entries": [{"pg_id": 1, "record_id": 3, "retired": false, "state": "%s",'
    ' "profiling_name": "nccl:all_reduce", "input_sizes": [[7]]}], "pg_status": {"1":'
    ' {"last_completed_collective": "2", "last_enqueued_collective": "4",'
    ' "last_started_collective": "3"}}}'
)


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_nccls_own_recorder_is_read_where_its_collective_is_waited_for(monkeypatch, state):
    dumps = {"_dump_nccl_trace_json": NCCL_DUMP % state, "_dump_fr_trace_json": f"{{{STATUS}}}"}
    for name, text in dumps.items():
        dump = lambda *_, text=text: text.encode()  # noqa: E731
        monkeypatch.setattr(_distributed_c10d, name, dump, raising=False)
    assert collectives() == Collectives(
        collective="nccl:all_reduce [[7]]", enqueued_seq=4, started_seq=3, completed_seq=2
    )
    assert "nccl:all_reduce" in flight_recorder()
    monkeypatch.delattr(_distributed_c10d, "_dump_nccl_trace_json")
    assert collectives().enqueued_seq == 8


def test_without_a_wait_the_newest_group_is_reported():
    assert read_collectives(f"{{{STATUS}}}") == Collectives(enqueued_seq=8, completed_seq=4)


@pytest.mark.parametrize(
    "dump",
    [
        *("", "no json", "[]", "{}", '{"pg_status": {}}', '{"pg_status": {"0": {}}}'),
        '{"pg_status": {"0": {"last_enqueued_collective": Infinity}}}',
        f"{{{STATUS}}}".replace("8", str(2**63)),
        '{"pg_status": ' + "[" * 100_000,
    ],
)
def test_an_unreadable_dump_yields_nothing(dump):
    assert read_collectives(dump) is None


def test_a_wait_that_raises_is_over(clock):
    class Manager:
        def start_quorum(self):
            clock[0] += SECOND_NS
            raise RuntimeError

        wait_quorum = should_commit = allreduce = start_quorum

    phases, manager = Phases(), Manager()
    stamp_waits(manager, phases, phases)
    with pytest.raises(RuntimeError):
        manager.start_quorum()
    assert phases.present().name == COMPUTE
    assert phases.waited_ns == SECOND_NS
