import json

import pytest

from experiments.compression import run
from experiments.compression.training import every_mode, train


@pytest.mark.slow
def test_every_mode_is_tried_and_compared_with_none_from_the_same_start(tmp_path, capsys):
    assert run.main(["--seeds", "2", "--steps", "2", "--jobs", "1", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {row["mode"]: row for row in results["modes"]}
    assert list(rows) == list(every_mode()) == list(run.BANDS)
    assert {len(curves) for curves in results["curves"].values()} == {2}
    starts = [curves[0]["loss"][0] for curves in results["curves"].values()]
    assert starts == [starts[0]] * len(starts)
    assert rows["int8"]["share"] <= 0.27
    assert rows["topk"]["share"] <= 0.03
    assert (tmp_path / "compression.png").stat().st_size > 0
    assert "more than none" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.slow
def test_a_mode_beyond_its_band_is_said_to_be(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(run.BANDS, "topk", -1.0)
    assert run.main(["--seeds", "1", "--steps", "1", "--jobs", "1", "--out", str(tmp_path)]) == 1
    assert "NO" in capsys.readouterr().out


@pytest.mark.slow
def test_training_in_int8_follows_training_in_none():
    plain, coded = (train(mode, 0, 20, 20).loss[-1] for mode in ("none", "int8"))
    assert coded == pytest.approx(plain, abs=0.02)
