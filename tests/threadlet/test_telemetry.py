"""From ``loom.step`` to columns: nothing blocks, nothing raises, dropped samples are counted."""

import math
import time

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, decode_telemetry, encode_telemetry
from torchloom_core.wire.limits import MAX_METRICS
from torchloom_core.wire.messages import Hello
from torchloom_threadlet import attach, ipc
from torchloom_threadlet.identity import identify
from torchloom_threadlet.sidecar.telemetry import Batches
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer

HELLO = Hello(run="run", worker="g0-0", incarnation=1, group="g0", rank=0, node="n1")
names = st.sampled_from(["loss", "lr", "step_time_s"])
rows = st.lists(st.tuples(st.integers(0, 2**62), st.dictionaries(names, st.floats(-1e9, 1e9))))


def heartbeat_with(rows):
    heartbeat = Batches(HELLO, ipc.Sent(batches=5, dropped=2))
    heartbeat.take(ipc.Samples(state="training", step=3, progress_ns=0, rows=rows))
    return heartbeat


@given(rows, st.dictionaries(st.sampled_from(["gpu_temp_celsius"]), st.floats(0, 100)))
def test_batches_contain_every_sample_and_the_last_row_the_newest_values(rows, gauges):
    [batch] = heartbeat_with(rows).batches(gauges)
    assert decode_telemetry(encode_telemetry(batch)) == batch
    table = np.frombuffer(batch.values, "<f8").reshape(-1, len(batch.metrics) or 1)
    times = np.frombuffer(batch.ts_ns, "<i8")
    newest = {name: value for _, row in rows for name, value in row.items()} | gauges
    if not newest:
        assert batch.ts_ns == b""
        return
    assert dict(zip(batch.metrics, table[-1], strict=True)) == newest
    assert len(times) == max(len(rows), 1)
    for (ts_ns, row), at, values in zip(rows[:-1], times, table, strict=False):
        assert at == ts_ns
        present = dict(zip(batch.metrics, values, strict=True))
        assert {name: v for name, v in present.items() if not math.isnan(v)} == row


def test_a_heap_of_samples_is_cut_into_messages_that_fit():
    row = {f"metric_{number}": 1.0 for number in range(50)}
    batches = heartbeat_with([(ts_ns, row) for ts_ns in range(10_000)]).batches({})
    assert sum(len(batch.ts_ns) // 8 for batch in batches) == 10_000
    assert [batch.seq for batch in batches] == list(range(5, 5 + len(batches)))
    assert all(len(encode_telemetry(batch)) < MAX_MESSAGE_BYTES / 2 for batch in batches)


def test_samples_that_become_old_while_the_broker_is_away_are_dropped_and_counted():
    heartbeat = heartbeat_with([(1, {"loss": 1.0}), (2, {"loss": 2.0})])
    heartbeat.drop(before_ns=2)
    [batch] = heartbeat.batches({})
    assert (batch.dropped, batch.metrics, batch.ts_ns) == (3, ("loss",), (2).to_bytes(8, "little"))
    heartbeat.take(ipc.Samples(state="training", step=4, progress_ns=0, rows=[(3, {"loss": 3.0})]))
    heartbeat.drop()
    [batch] = heartbeat.batches({})
    assert (batch.dropped, batch.metrics) == (4, ())


def test_samples_beyond_the_buffer_are_dropped_oldest_first_and_counted():
    samples = SampleBuffer(capacity=3)
    for serial in range(1, 6):
        samples.waiting.append((serial, serial * 10**9, {"loss": float(serial)}))
    taken = samples.take(entered_ns=0)
    assert [row["loss"] for _, row in taken] == [3.0, 4.0, 5.0]
    assert samples.dropped == 2
    assert [row.get("step_time_s") for _, row in taken] == [None, 1.0, 1.0]


def test_a_step_with_a_pause_has_no_duration():
    samples = SampleBuffer()
    samples.waiting.append((1, 10 * 10**9, {}))
    samples.take(entered_ns=0)
    samples.waiting.append((2, 99 * 10**9, {}))
    samples.waiting.append((3, 100 * 10**9, {}))
    taken = samples.take(entered_ns=98 * 10**9)
    assert [row for _, row in taken] == [{}, {"step_time_s": 1.0}]


def test_the_step_after_the_first_has_a_duration_though_the_state_changes_between_them():
    samples = SampleBuffer()
    first_ns = 10 * 10**9
    samples.waiting.append((1, first_ns, {}))
    samples.waiting.append((2, 17 * 10**9, {}))
    taken = samples.take(entered_ns=first_ns + 50_000)
    assert [row for _, row in taken] == [{}, {"step_time_s": 7.0}]


def test_metrics_may_be_tensors_and_junk_is_left_out():
    samples = SampleBuffer()
    metrics = {"loss": torch.tensor(2.5), "name": "seven", "none": None, "nan": math.nan, "n": 3}
    samples.waiting.append((1, 1, metrics))
    [(_, row)] = samples.take(0)
    assert row == {"loss": 2.5, "n": 3.0}


def test_a_row_with_as_many_metrics_as_may_be_has_no_derived_ones_beyond():
    samples = SampleBuffer()
    samples.peak_flops = 1e12
    metrics = {"wait_s": 1.0, "flops": 1e9} | {f"metric_{n}": 0.0 for n in range(MAX_METRICS)}
    samples.waiting.extend((n, n * 10**9, metrics) for n in (1, 2))
    assert [len(row) for _, row in samples.take(0)] == [MAX_METRICS - 1, MAX_METRICS]


def test_without_a_weaver_the_loom_is_inert_and_everything_still_works(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHLOOM_JOIN", raising=False)
    loom = attach(standby=True)
    attach()
    assert loom.inert
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "is inert" in record.message
    assert "set TORCHLOOM_JOIN" in record.message
    parameter = torch.nn.Parameter(torch.zeros(1))
    loom.optimizer(torch.optim.SGD([parameter], lr=0.1))
    loom.on_checkpoint(lambda: None)
    loom.note("mine", value=1)
    loss = (parameter * 2).sum()
    assert all(loom.step(loss=loss) for _ in range(10))
    loom.close()
    assert loom.step()


def test_a_named_join_file_that_is_missing_is_distinguished_from_a_broken_one(
    tmp_path, monkeypatch, caplog
):
    broken = tmp_path / "join.json"
    broken.write_text("{}")
    unread = " (the file there is not a valid join.json)"
    for named, why in ((tmp_path / "jion.json", ""), (broken / "join.json", ""), (broken, unread)):
        monkeypatch.setenv("TORCHLOOM_JOIN", str(named))
        loom = attach()
        assert not loom.inert
        loom.close()
        assert caplog.messages[-1].startswith(f"no Weaver yet at {named}{why}: training starts")


def test_a_step_raises_nothing_whatever_it_is_given(caplog):
    class Foreign:
        def detach(self):
            raise RuntimeError("no")

    loom = attach()
    assert loom.step(loss=Foreign())
    assert loom.step("not a number")
    assert loom.step()
    assert loom.step(object(), loss=1.0)


def test_a_metric_that_raises_is_left_out_and_the_step_counts(awaiting_loom):
    unknown = torch.nn.parameter.UninitializedParameter()
    assert all(awaiting_loom.step(loss=1.0, bias=unknown) for _ in range(2))
    rows = [row for _, row in awaiting_loom._worker.samples.take(0)]
    assert [row["loss"] for row in rows] == [1.0, 1.0]
    assert all("bias" not in row for row in rows)


def test_a_workers_identity_comes_from_arguments_before_the_environment():
    environment = {
        "TORCHLOOM_GROUP": "a.b",
        "REPLICA_GROUP_ID": "5",
        "RANK": "3",
        "TORCHLOOM_NODE": "node 7",
        "TORCHLOOM_RACK": "r2",
        "TORCHLOOM_ROLE": "standby",
        "TORCHLOOM_LABELS": "model=H100, cage.row = c3,age_years=2,odd,inf=inf",
    }
    found = identify(environment=environment)
    assert found.labels == {"model": "H100", "cage.row": "c3", "age_years": 2.0, "inf": "inf"}
    assert (found.worker, found.placement.node, found.placement.rack) == ("a_b-3", "node_7", "r2")
    assert found.standby
    found = identify(group="g9", rank=1, standby=False, environment=environment)
    assert (found.worker, found.standby) == ("g9-1", False)
    assert identify(environment={"REPLICA_GROUP_ID": "5"}).worker == "5-0"
    assert abs(found.incarnation / 1000 - time.time()) < 1e6


def test_an_invalid_default_join_file_makes_one_clear_line(tmp_path, caplog):
    broken = tmp_path / ".torchloom" / "join.json"
    broken.parent.mkdir()
    broken.write_text("{}")
    assert attach().inert
    assert caplog.messages == [f"torchloom is inert: {broken} is not a valid join.json"]
