"""Old telemetry is thinned by age and budget; decisions stay; readers say what is missing."""

import os
import shutil

import numpy as np
import pytest
from msgspec import structs

from torchloom_core.config.schema import Config
from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import StateError, TraceError
from torchloom_core.lab.trace.recorded.recorded import from_trajectory
from torchloom_core.live.trajectory.layout import epoch_folder, part_paths
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.retention import carry_out, planned, prune, size_of
from torchloom_core.live.trajectory.retention_steps import epoch_steps
from torchloom_core.live.trajectory.tables import events, telemetry, thinned_telemetry
from torchloom_core.live.trajectory.thinned import raw_parts, thinned_files
from torchloom_core.live.trajectory.usage import usage
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Telemetry

START_NS = 1_800_000_000 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
RULES = Trajectory(raw_h=1, thin_s=60, coarse_h=48, coarse_s=600, budget_gib=0, low_gib=0)


def record(root, hours: float = 3.0, workers: int = 3, epoch: int = 1) -> TrajectoryWriter:
    """Record a batch of each worker and a tick every 30 s, in many parts."""
    writer = TrajectoryWriter(root, "run", epoch, Config(), {}, START_NS, part_bytes=20_000)
    rng = np.random.default_rng(epoch)
    for second in range(0, round(hours * 3600), 30):
        ts_ns = START_NS + second * SECOND_NS
        for worker in range(workers):
            values = rng.normal(size=2)
            values[0] = np.nan if second % 120 == 0 else values[0]
            batch = Telemetry(
                run="run",
                worker=f"g{worker}-0",
                incarnation=1,
                seq=second,
                state="training",
                step=second,
                progress_age_s=0.0,
                metrics=("loss", "step_time_s"),
                ts_ns=np.array([ts_ns], "<i8").tobytes(),
                values=values.astype("<f8").tobytes(),
            )
            writer.telemetry(encode_telemetry(batch), ts_ns)
        writer.event(Tick(), ts_ns, ())
        writer.flush()
        newest = part_paths(writer.folder, "telemetry")[-1]
        os.utime(newest, ns=(ts_ns, ts_ns))
    return writer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("recorded")
    record(root).close()
    return root


def expected(frame, every: str):
    grouped = frame.groupby([frame["ts"].dt.floor(every), "worker", "metric"], observed=True)
    return grouped["value"].agg(["count", "min", "mean", "max"]).sort_index()


def found(root):
    frame = thinned_telemetry(root)
    return frame.set_index(["ts", "worker", "metric"])[["count", "min", "mean", "max"]].sort_index()


def test_telemetry_of_some_age_is_thinned_twice_to_the_same_as_from_raw(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    raw, before, lines = telemetry(tmp_path), size_of(tmp_path), len(events(tmp_path))
    prune(tmp_path, RULES, now_ns=START_NS + 24 * HOUR_NS)
    assert not len(telemetry(tmp_path))
    assert np.allclose(found(tmp_path), expected(raw, "60s"))
    prune(tmp_path, RULES, now_ns=START_NS + 72 * HOUR_NS)
    assert np.allclose(found(tmp_path), expected(raw, "600s"))
    assert len(events(tmp_path)) == lines
    assert size_of(tmp_path) < before / 3


def test_a_running_weaver_keeps_its_newest_part_and_what_is_younger(tmp_path):
    writer = record(tmp_path)
    parts = part_paths(writer.folder, "telemetry")
    prune(tmp_path, RULES, now_ns=START_NS + 3 * HOUR_NS)
    left = part_paths(writer.folder, "telemetry")
    assert parts[-len(left) :] == left
    assert len(parts) > len(left) > 1
    prune(tmp_path, RULES, now_ns=START_NS + 300 * HOUR_NS)
    assert part_paths(writer.folder, "telemetry")[-1] == parts[-1]
    writer.event(Tick(), START_NS + 3 * HOUR_NS, ())
    writer.close()
    inputs = [one.seq for one in read_epochs(tmp_path)[0].inputs()]
    assert inputs == sorted(inputs)
    assert len(inputs) >= 3 * 120 + 1


def test_a_reader_skips_what_was_thinned_and_says_so(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    (epoch,) = read_epochs(tmp_path)
    assert epoch.missing == ""
    prune(tmp_path, RULES, now_ns=START_NS + 24 * HOUR_NS)
    assert epoch.missing == (
        "the raw telemetry of 2027-01-15T08:00Z to 2027-01-15T10:59:30Z was thinned to 60 s"
    )
    assert {type(one.message) for one in epoch.inputs()} == {Tick}


def test_beyond_the_budget_telemetry_is_thinned_then_dropped_and_decisions_stay(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    lines = len(events(tmp_path))
    least = Trajectory(raw_h=1000, coarse_h=2000, budget_gib=1e-9, low_gib=0)
    assert planned(tmp_path, least, START_NS)
    done = prune(tmp_path, least, now_ns=START_NS)
    assert done.lacks.endswith("budget_gib is 1e-09")
    assert not len(thinned_telemetry(tmp_path))
    assert len(events(tmp_path)) == lines
    assert read_epochs(tmp_path)[0].missing.endswith("was deleted")


def test_a_killed_pass_is_finished_by_the_next_one(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    folder = epoch_folder(tmp_path, 1)
    saved = {path: path.read_bytes() for path in part_paths(folder, "telemetry")}
    prune(tmp_path, RULES, now_ns=START_NS + 24 * HOUR_NS)
    (folder / "thinned-000001-000002.new").write_bytes(b"half")
    for path, data in saved.items():  # it was killed before it deleted them
        path.write_bytes(data)
    assert not len(telemetry(tmp_path))
    prune(tmp_path, RULES, now_ns=START_NS + 24 * HOUR_NS)
    assert not part_paths(folder, "telemetry")
    assert not list(folder.glob("*.new"))
    assert len(thinned_files(folder)) >= 3


def test_an_epoch_in_use_is_refused_and_one_that_ended_is_dropped(tmp_path):
    writer = record(tmp_path, hours=0.1)
    with pytest.raises(StateError, match="need an epoch that has ended"):
        epoch_steps(tmp_path, 1)
    writer.close()
    with pytest.raises(StateError, match=r"need a recorded epoch \(1\), was 7"):
        epoch_steps(tmp_path, 7)
    (step,) = epoch_steps(tmp_path, 1)
    carry_out(step)
    assert not len(telemetry(tmp_path))
    assert not epoch_steps(tmp_path, 1)


def test_a_damaged_part_is_left_as_it_is(tmp_path, recorded, caplog):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    first = part_paths(epoch_folder(tmp_path, 1), "telemetry")[0]
    first.write_bytes(b"damaged" * 100)
    prune(tmp_path, RULES, now_ns=START_NS + 24 * HOUR_NS)
    assert first.exists()
    assert str(first) in caplog.text


def test_damaged_sealed_and_thinned_files_keep_no_others_from_being_thinned(tmp_path, caplog):
    for epoch in (1, 2, 3):
        record(tmp_path, hours=2.0, epoch=epoch).close()
    sealed = part_paths(epoch_folder(tmp_path, 1), "telemetry")[0].with_suffix(".parquet")
    (epoch_folder(tmp_path, 3) / "telemetry-of-mine.txt").touch()
    thinned = epoch_folder(tmp_path, 2) / "thinned-000001-000002.parquet"
    behind = part_paths(epoch_folder(tmp_path, 2), "telemetry")[:2]
    part_paths(epoch_folder(tmp_path, 1), "telemetry")[0].unlink()
    for path in (sealed, thinned):
        path.write_bytes(b"PAR1 cut off")
    early = structs.replace(RULES, budget_gib=1e-9)
    prune(tmp_path, early, now_ns=START_NS + 24 * HOUR_NS)
    usage(tmp_path)
    assert sealed.exists()
    assert thinned.exists()
    assert all(part.exists() for part in behind)  # it stands for them by its name alone
    assert f"{sealed}: damaged" in caplog.text
    assert f"{thinned}: damaged" in caplog.text
    left = [len(raw_parts(epoch_folder(tmp_path, epoch))) for epoch in (1, 2, 3)]
    assert left == [1, 0, 0]


def test_a_trace_of_a_thinned_epoch_is_refused(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path / "run")
    prune(tmp_path / "run", RULES, now_ns=START_NS + 24 * HOUR_NS)
    with pytest.raises(TraceError, match="need the raw telemetry of an epoch: the raw telemetry"):
        from_trajectory(tmp_path / "run", tmp_path / "out.tltrace")
