"""The files open in pandas, by themselves and through the frames, and are linked by cause."""

import io
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.small_disk import fill, small_disk
from torchloom_core.capabilities.alert import Alert
from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.config.schema import Config, Costs
from torchloom_core.floor.errors import StateError
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.trajectory.export import export
from torchloom_core.live.trajectory.layout import part_paths
from torchloom_core.live.trajectory.sealing import seal
from torchloom_core.live.trajectory.tables import events, telemetry
from torchloom_core.live.trajectory.writer import TrajectoryWriter, links_of
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import CommandStatus, Issue, Outcome, Proposal, Proposed, Verdict
from torchloom_core.wire.events import Forecast, Tick
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.operations import Drain

BASE_NS = 1_700_000_000_123_456_789
ALERT = Alert(worker="g0-0", text="look")
COMMAND = Command(
    id="c1",
    run="demo",
    worker="g0-0",
    incarnation=1,
    epoch=1,
    issued_ns=1,
    deadline_ns=2,
    do=Drain(),
    cause="p1",
)


def a_batch(worker: str, metrics: tuple[str, ...], values: list[list[float]]) -> Telemetry:
    return Telemetry(
        run="demo",
        worker=worker,
        incarnation=1,
        seq=1,
        state="training",
        step=3,
        progress_age_s=0.5,
        metrics=metrics,
        ts_ns=(np.arange(len(values)) + BASE_NS).astype("<i8").tobytes(),
        values=np.array(values, "<f8").tobytes(),
    )


def write_two_epochs(root: Path) -> None:
    first = TrajectoryWriter(root, "demo", 1, Config(), {}, 5)
    two_samples = a_batch("g0-0", ("loss", "temp"), [[1.0, 50.0], [2.0, np.nan]])
    first.telemetry(encode_telemetry(two_samples), BASE_NS)
    first.telemetry(encode_telemetry(a_batch("g1-0", (), [])), BASE_NS)
    first.telemetry(encode_telemetry(a_batch("g1-0", ("temp",), [[60.0]])), BASE_NS)
    first.event(Forecast(id="f1", predictor="ewma", horizon_s=9.0, hazard={}), BASE_NS, ())
    proposal = Proposal(action=ALERT, reason="hot", cause=("f1", "g0-0/exit:1"))
    record = CommandStatus(command="c1", worker="g0-0", status="issued", verb="drain", cause="p1")
    verdict = Verdict(
        proposal="p1",
        policy="x",
        action=ALERT,
        granted=True,
        rule="net gain",
        reason="",
        net_gpu_s=1.0,
    )
    proposed = Proposed(id="p1", policy="x", proposal=proposal)
    first.event(Tick(), BASE_NS + 1, [proposed, verdict, record, Issue(command=COMMAND)])
    first.close()
    second = TrajectoryWriter(root, "demo", 2, Config(), {}, 5)
    ack = Ack(command="c1", run="demo", worker="g0-0", incarnation=1, epoch=1, status="applied")
    outcome = Outcome(verdict="p1", policy="x", action=ALERT, result="done", detail="", took_s=1.0)
    second.event(ack, BASE_NS + 2, [outcome])
    second.telemetry(encode_telemetry(a_batch("g0-0", ("temp", "loss"), [[51.0, 3.0]])), BASE_NS)
    second.close()


def test_a_decision_is_followed_from_forecast_to_outcome(tmp_path: Path) -> None:
    write_two_epochs(tmp_path)
    frame = events(tmp_path)
    assert list(frame.columns) == [
        *("epoch", "seq", "n", "outputs", "ts", "io", "kind", "id", "cause", "worker", "body")
    ]
    assert list(frame.ts.unique()) == [pd.Timestamp(BASE_NS + more, tz="UTC") for more in (0, 1, 2)]
    of_forecast = frame[frame.cause.str.split().map(lambda causes: "f1" in causes)]
    (proposal,) = of_forecast[of_forecast.kind == "proposed"].id
    caused = frame[frame.cause == proposal]
    assert list(caused.kind) == ["verdict", "command_status", "issue", "outcome"]
    (command,) = caused[caused.kind == "issue"].id
    (ack,) = frame[frame.cause == command].body
    assert ack["status"] == "applied"
    assert list(frame[frame.worker == "g0-0"].epoch) == [1, 1, 1, 1, 2, 2]
    assert list(events(tmp_path, kind="outcome").body.map(lambda body: body["result"])) == ["done"]
    assert list(events(tmp_path, worker="unknown").kind) == []


def test_samples_are_one_row_a_value_and_missing_ones_have_none(tmp_path: Path) -> None:
    write_two_epochs(tmp_path)
    frame = telemetry(tmp_path)
    base, later = pd.Timestamp(BASE_NS, tz="UTC"), pd.Timestamp(BASE_NS + 1, tz="UTC")
    assert list(frame.itertuples(index=False, name=None)) == [
        (base, "g0-0", "loss", 1.0),
        (base, "g0-0", "temp", 50.0),
        (later, "g0-0", "loss", 2.0),
        (base, "g1-0", "temp", 60.0),
        (base, "g0-0", "temp", 51.0),
        (base, "g0-0", "loss", 3.0),
    ]
    assert list(telemetry(tmp_path, worker="g0-0", metric="loss").value) == [1.0, 2.0, 3.0]
    assert telemetry(tmp_path, metric="nothing").empty
    assert telemetry(tmp_path, worker="unknown").empty


def test_an_empty_trajectory_gives_empty_frames_with_all_columns(tmp_path: Path) -> None:
    TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5).close()
    assert list(telemetry(tmp_path).columns) == ["ts", "worker", "metric", "value"]
    assert "body" in events(tmp_path).columns
    assert [name for name, _ in export(tmp_path, str(tmp_path / "out"))] == [
        "epoch-000001/meta.json"
    ]


def test_the_files_open_in_pandas_by_themselves(tmp_path: Path) -> None:
    write_two_epochs(tmp_path)
    folder = tmp_path / "epoch-000001"
    lines = pd.read_json(part_paths(folder, "events")[0], lines=True)
    assert list(lines.kind) == [
        "forecast",
        "tick",
        "proposed",
        "verdict",
        "command_status",
        "issue",
    ]
    assert list(lines.ts_ns) == [BASE_NS] + [BASE_NS + 1] * 5
    assert list(lines.id) == ["f1", "", "p1", "", "c1", "c1"]
    seal(*part_paths(folder, "telemetry"))
    rows = pd.read_parquet(*part_paths(folder, "telemetry"))
    assert list(rows.worker) == ["g0-0", "g1-0", "g1-0"]
    assert list(rows.metrics[0]) == ["loss", "temp"]
    assert list(rows["values"][2]) == [60.0]


@pytest.mark.parametrize("place", ["{}/out/deep", "memory://exports/{}"])
def test_the_exported_tables_equal_the_frames(tmp_path: Path, place: str) -> None:
    write_two_epochs(tmp_path)
    place = place.format(str(tmp_path).strip("/") if "memory" in place else tmp_path)
    names = [name for name, _ in export(tmp_path, place)]
    assert not list(export(tmp_path, place)), "what is there is not written again"
    storage = storage_at(place)

    def read(kind: str) -> pd.DataFrame:
        frames = []
        for name in names:
            if f"/{kind}-" in name:
                with storage.open(name) as file:
                    frames.append(pd.read_parquet(io.BytesIO(file.read())))
        return pd.concat(frames, ignore_index=True)

    plain = {"worker": str, "metric": str}
    assert read("telemetry").astype(plain).equals(telemetry(tmp_path).astype(plain))
    frame = read("events")
    assert frame.drop(columns="body").equals(events(tmp_path).drop(columns="body"))
    assert frame.body[0].startswith('{"type":"forecast","id":"f1"')


def test_an_export_beside_a_weaver_leaves_the_newest_parts_for_the_next(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path / "run", "demo", 1, Config(), {}, 5, part_bytes=100)
    for number in range(3):
        writer.telemetry(encode_telemetry(a_batch("g0-0", ("loss",), [[float(number)]])), BASE_NS)
        writer.event(Tick(), BASE_NS, ())
        writer.flush()
    place = str(tmp_path / "out")
    first = {name for name, _ in export(tmp_path / "run", place)}
    parts = {
        f"epoch-000001/{kind}-00000{n}.parquet" for kind in ("events", "telemetry") for n in (1, 2)
    }
    assert first == {"epoch-000001/meta.json", *parts}
    writer.close()
    second = {name for name, _ in export(tmp_path / "run", place)}
    assert second == {f"epoch-000001/{kind}-000003.parquet" for kind in ("events", "telemetry")}


def test_tables_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    write_two_epochs(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match=r"file/out.*: cannot be written: Not a directory"):
        list(export(tmp_path, str(tmp_path / "file" / "out")))
    with pytest.raises(StateError, match="nothing://a/b: Protocol not known"):
        list(export(tmp_path, "nothing://a/b"))


@pytest.mark.integration
def test_a_full_folder_for_drafts_is_named(tmp_path: Path, monkeypatch) -> None:
    write_two_epochs(tmp_path)
    with small_disk(tmp_path / "tmp", 1) as folder:
        fill(folder / "full")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with pytest.raises(StateError, match=r"/tmp: cannot be written: .*; set TMPDIR to"):
            list(export(tmp_path, str(tmp_path / "out")))


def test_exits_and_notes_have_the_ids_of_their_faults() -> None:
    fleet = FleetState((), tick_s=1.0, stale_after_s=10.0, costs=Costs())
    hello = Hello(run="demo", worker="g0-0", incarnation=4, group="g0", rank=0, node="n0")
    note = Note(run="demo", worker="g0-0", incarnation=4, kind="hang", ts_ns=77)
    gone = Exit(run="demo", worker="g0-0", incarnation=4, status=-9, expected=False)
    fleet.register(hello, 1)
    fleet.note(note, 2)
    fleet.end(gone, 3)
    faults = fleet.view(4, {}).faults
    assert [links_of(note).id, links_of(gone).id] == [fault.id for fault in faults]
