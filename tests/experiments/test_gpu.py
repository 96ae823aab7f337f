"""The script for a GPU, on a CPU in small: it runs, reports, and publishes nothing."""

import json

import pytest

from experiments.gpu import run

FIGURES = [
    *("step_5ms", "step_compiled"),
    *("coding_bf16", "coding_fp16", "coding_int8", "coding_topk", "coding_powersgd"),
    *("checkpoint_stall", "compute_s", "abort_alone"),
]


def test_figures_of_a_cpu_are_not_written_beside_those_of_a_gpu():
    with pytest.raises(SystemExit, match="need another folder than gpu"):
        run.main(["--cpu", "--json", str(run.HERE / "results.json")])


def test_what_a_section_has_measured_is_kept_when_it_fails():
    figure = {"name": "n", "what": "w", "limit": 1.0, "bound": "at most", "ratios": [0.5]}
    lines = [json.dumps({"figure": figure}), "noise {", json.dumps({"failed": "CUDA error"})]
    outcome = run.outcome_of("\n".join(lines))
    assert [each.name for each in outcome.figures] == ["n"]
    assert outcome.failed == ["CUDA error"]


def report_of(tmp_path, *words):
    found = tmp_path / "found.json"
    words += ("--cpu", "--json", str(found), "--plot", str(tmp_path / "plot.png"))
    assert run.main(list(words)) == 0
    assert (tmp_path / "plot.png").stat().st_size > 0
    return json.loads(found.read_text())


@pytest.mark.integration
def test_a_section_on_a_cpu_reports_its_figures_with_their_limits(tmp_path):
    report = report_of(tmp_path, "--only", "coding")
    assert report["machine"]["device"] == "cpu"
    figures = {figure["name"]: figure for figure in report["sections"]["coding"]["figures"]}
    assert figures["coding_int8"]["limit"] == 0.5
    assert figures["coding_int8"]["ratio"] > 0


@pytest.mark.long
@pytest.mark.integration
def test_all_sections_run_in_small_on_a_cpu_or_say_what_they_lack(tmp_path, capsys):
    sections = report_of(tmp_path)["sections"]
    assert list(sections) == list(run.SECTIONS)
    figures = [figure for each in sections.values() for figure in each["figures"]]
    assert [figure["name"] for figure in figures] == FIGURES
    [reason] = sections["nvml_cost"]["skipped"]
    assert reason.startswith("NVML finds no GPU")
    assert sections["nccl"]["skipped"] == ["two ranks on one GPU: no GPU"]
    printed = capsys.readouterr().out
    assert "On the CPU, in small, since --cpu was given" in printed
    assert str(run.ROOT) not in json.dumps(sections)
