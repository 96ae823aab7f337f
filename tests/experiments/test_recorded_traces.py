"""The experiments on recorded traces run, each on a small stand-in of its data."""

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest

from experiments.asd_detection import run as asd
from experiments.asd_detection.recording import STEP_S, import_asd
from experiments.backblaze_forecasts import run as backblaze
from experiments.forecast_trial.trial import Fold, run
from experiments.infinitehbd_forecasts import run as infinitehbd
from torchloom_core.lab.trace import Bundle
from torchloom_core.lab.trace.importers import import_backblaze, import_infinitehbd

pytestmark = pytest.mark.integration

EXPERIMENTS = {"infinitehbd": infinitehbd, "backblaze": backblaze, "asd": asd}
STEPS_A_DAY = 288


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_candidate_takes_its_options(name):
    trial = EXPERIMENTS[name].TRIAL
    for candidate in trial.candidates:
        paced = {"horizon_s": trial.task.horizon_s, "every_s": trial.every_s}
        options = msgspec.convert({**candidate.options, **paced}, candidate.cls.Options)
        assert candidate.cls(options).horizon_s == trial.task.horizon_s


def few(trial, *names, **changes):
    """Return the trial with the row and the named candidates only."""
    wanted = {trial.row, *names}
    candidates = tuple(one for one in trial.candidates if one.name in wanted)
    return replace(trial, candidates=candidates, beside=(), baselines=(), **changes)


def test_faults_of_nodes_that_failed_before_are_forecast(tmp_path):
    random = np.random.default_rng(0)
    rows = []
    for day in range(150):
        for node in np.flatnonzero(random.random(30) < np.where(np.arange(30) < 4, 0.08, 0.002)):
            fault = (f"n{node}", "Hardware Failure", "GPU", f"fault {day}")
            rows += [(day + 0.2, "fault_start", *fault), (day + 0.6, "fault_end", *fault)]
    columns = ["t", "ev", "node_id", "Level", "Class", "Desc"]
    pd.DataFrame(rows, columns=columns).sort_values("t", kind="stable").to_csv(
        tmp_path / "fault_events.csv", index=False
    )
    import_infinitehbd(tmp_path, tmp_path / "a.tltrace")
    trial = few(
        infinitehbd.TRIAL, "fault_history, fitted", folds=(Fold(cut_d=40, until_d=80),), cut_d=80
    )
    found = run(trial, Bundle.open(tmp_path / "a.tltrace"))
    assert found.scores[0].auprc.value > 5 * found.scores[0].prevalence


def test_drives_whose_sectors_go_bad_are_forecast(tmp_path):
    random = np.random.default_rng(0)
    fails = {f"d{drive:03}": int(random.integers(4, 40)) for drive in range(0, 120, 4)}
    rows = []
    for drive in (f"d{number:03}" for number in range(120)):
        last = fails.get(drive, 10**6)
        rows += [
            {
                "date": pd.Timestamp("2013-04-10") + pd.Timedelta(days=day),
                "serial_number": drive,
                "model": "made up",
                "failure": int(day == last),
                "smart_1_raw": random.random(),
                "smart_5_raw": 50.0 * (last - day < 8),
                "smart_9_raw": 1000.0 + day,
                "smart_194_raw": 25.0,
                "smart_197_raw": 8.0 * (last - day < 5),
            }
            for day in range(min(40, last + 1))
        ]
    pd.DataFrame(rows).to_parquet(tmp_path / "drives.parquet")
    import_backblaze(tmp_path, tmp_path / "b.tltrace")
    trial = few(backblaze.TRIAL, "rules SMART 5, 197, both", folds=(Fold(cut_d=14, until_d=24),))
    found = run(trial, Bundle.open(tmp_path / "b.tltrace"))
    assert found.scores[0].auprc.value > 0.5
    assert min(found.scores[0].leads_s) >= 86_400.0


def recording(folder, days=(3, 2)):
    """Write two servers with a daily course; the second one's first day is not recorded."""
    random = np.random.default_rng(0)
    tables = []
    for machine, missing in (("a", 0), ("b", 1)):
        for split, length in (("train", days[0] - missing), ("test", days[1])):
            t = np.arange(length * STEPS_A_DAY)
            label = (split == "test") & (t % 144 >= 100) & (t % 144 < 112)
            table = pd.DataFrame({"machine": machine, "split": split, "t": t})
            for number in range(19):
                course = np.sin(2 * np.pi * t / STEPS_A_DAY) + 0.05 * random.normal(size=len(t))
                table[f"m{number:02}"] = course + 2.0 * label
            table["label"] = label.astype(np.int8)
            tables.append(table)
    folder.mkdir(exist_ok=True)
    pd.concat(tables).to_parquet(folder / "asd.parquet")
    return folder


def test_a_recording_becomes_a_bundle_with_an_incident_for_each_run_of_labels(tmp_path):
    import_asd(recording(tmp_path), tmp_path / "c.tltrace")
    bundle = Bundle.open(tmp_path / "c.tltrace")
    start_ns, step_ns = bundle.manifest.start_ns, round(STEP_S * 1e9)
    assert bundle.manifest.end_ns - start_ns == 5 * STEPS_A_DAY * step_ns
    events = bundle.events()
    assert len(events) == 8
    assert events[0].t_event == start_ns + (3 * STEPS_A_DAY + 100) * step_ns
    assert events[0].t_avail == events[0].t_resolved == events[0].t_event + 12 * step_ns
    late = {part.id: part.from_ns for part in bundle.topology()}
    assert late == {"a": None, "b": start_ns + STEPS_A_DAY * step_ns}


@pytest.mark.long
def test_anomalies_are_detected(tmp_path):
    import_asd(recording(tmp_path, days=(2, 2)), tmp_path / "d.tltrace")
    trial = few(
        asd.TRIAL,
        "seasonal residual, 15 min",
        folds=(Fold(cut_d=2, until_d=3),),
        cut_d=3,
        every_s=900.0,
        learn_every_s=900.0,
    )
    found = run(trial, Bundle.open(tmp_path / "d.tltrace"))
    assert found.scores[0].auprc.value > 0.5
    assert found.scores[0].task == "detect"
