"""How well the tuner's model predicts the steps of runs that it was not fitted on."""

import json

import pytest

from experiments.allreduce import predict

CHANGING = (10_000, 1000, 200, 50)
COMPUTE_S, GRADIENT = 0.1, 28.8e6
SENT = {"none": 43.2e6, "bf16": 21.6e6, "int8": 10.9e6}
CODE_S = {"none": 0.0, "bf16": 0.02, "int8": 0.05}
USE = {"none": 1.0, "bf16": 0.72, "int8": 0.72}


def wire_s(mode, mbit):
    return SENT[mode] / (mbit * 1e6 / 8 * USE[mode])


def step_s(mode, mbit):
    return COMPUTE_S + CODE_S[mode] + wire_s(mode, mbit)


def write(folder, mode, mbits, phase_s=20.0):
    """Write the journals of an arm's four ranks, whose links are another each ``phase_s``."""
    lines, now_s = [], 0.0
    for number, mbit in enumerate(mbits):
        while now_s < (number + 1) * phase_s:
            now_s += step_s(mode, mbit)
            lines.append(
                {
                    "event": "step",
                    "t": now_s,
                    "step": len(lines) + 1,
                    "mode": mode,
                    "step_time": step_s(mode, mbit),
                    "compute": COMPUTE_S,
                    "compress": CODE_S[mode],
                    "wire": wire_s(mode, mbit),
                    "overlap": 0.0,
                    "bytes": SENT[mode],
                    "gradient": GRADIENT,
                    "reductions": 2,
                }
            )
    folder.mkdir(parents=True)
    for rank in range(4):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"rank{rank}.jsonl").write_text(text)


def told(tmp_path, *levels):
    """Foretell runs at these levels; return the exit status and what was written."""
    for mode in SENT:
        write(tmp_path / "changing" / f"{mode}-1", mode, CHANGING)
        for mbit in levels:
            write(tmp_path / f"constant-{mbit}" / f"{mode}-1", mode, [mbit], 60.0)
    out = tmp_path / "foretold.json"
    names = ",".join(f"constant-{mbit}" for mbit in levels)
    status = predict.main(["--logs", str(tmp_path), "--told", names, "--out", str(out)])
    return status, json.loads(out.read_text())


def test_each_mode_is_foretold_on_links_that_the_model_was_not_fitted_on(tmp_path, capsys):
    status, rows = told(tmp_path, 500, 100)
    assert status == 0
    assert "holds: 18 of 18 within 15%" in " ".join(capsys.readouterr().out.split())
    for row in rows:
        mbit = int(row["run"].removeprefix("constant-"))
        assert row["measured_s"] == pytest.approx(step_s(row["mode"], mbit))


def test_a_step_that_is_foretold_badly_does_not_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(predict, "MOST_OFF", 1e-6)
    status, _ = told(tmp_path, 500)
    assert status == 1
    assert "does not hold" in capsys.readouterr().out


def test_the_tuners_own_arm_and_modes_that_were_not_fitted_are_left_out(tmp_path):
    write(tmp_path / "constant-500" / "tuner-1", "none", [500], 60.0)
    write(tmp_path / "constant-500" / "topk-1", "none", [10], 60.0)
    (tmp_path / "constant-500" / "topk-1" / "rank0.jsonl").write_text(
        (tmp_path / "constant-500" / "topk-1" / "rank0.jsonl").read_text().replace("none", "topk")
    )
    status, rows = told(tmp_path, 500)
    assert status == 0
    assert {row["mode"] for row in rows} == set(SENT)


def test_a_run_without_journals_is_refused_in_a_line(tmp_path):
    with pytest.raises(SystemExit, match=r"changing: need journals of run\.py, static arms"):
        predict.main(["--logs", str(tmp_path)])
