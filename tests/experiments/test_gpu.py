"""The script for a GPU, on a CPU in small: it runs, reports, and publishes nothing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from experiments.bench.figure import Figure
from experiments.gpu import needed, run, section, section_process

FIGURES = [
    *("step_5ms", "step_compiled"),
    *("coding_bf16", "coding_fp16", "coding_int8", "coding_topk", "coding_powersgd"),
    *("checkpoint_stall", "compute_s", "abort_alone"),
]


@pytest.mark.integration
def test_figures_of_a_cpu_are_not_written_beside_those_of_a_gpu():
    with pytest.raises(SystemExit, match="need another folder than gpu"):
        run.main(["--cpu", "--json", str(run.HERE / "results.json")])


def test_what_a_section_has_measured_is_kept_when_it_fails():
    figure = {"name": "n", "what": "w", "limit": 1.0, "bound": "at most", "ratios": [0.5]}
    lines = [json.dumps({"figure": figure}), "noise {", json.dumps({"failed": "CUDA error"})]
    outcome = run.outcome_of("\n".join(lines))
    assert [each.name for each in outcome.figures] == ["n"]
    assert outcome.failed == ["CUDA error"]


@pytest.mark.integration
def test_without_its_packages_the_script_names_them_all_in_one_line():
    bare = [sys.executable, "-S", "-E", run.__file__, "--cpu"]
    ran = subprocess.run(bare, capture_output=True, text=True, check=False)
    [line] = ran.stderr.splitlines()
    assert line.startswith("need torch, torchft-nightly, nvidia-ml-py, matplotlib, rich, ")
    assert line.endswith(f"torchloom: {needed.INSTALL} in {run.ROOT}")
    assert ran.returncode == 1


@pytest.mark.integration
def test_on_a_gpu_a_missing_compiler_is_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "lacks_gpu", lambda: "")
    monkeypatch.setattr(run, "run", lambda *_: pytest.fail("a section runs"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(needed.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="need a C compiler"):
        run.main(["--only", "coding"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "need one argument, cuda or cpu, was nothing"),
        (["gpu"], "need one argument, cuda or cpu, was gpu"),
        (["cuda"], f"need a GPU for cuda: torch {torch.__version__} finds none"),
    ],
)
def test_a_section_by_itself_names_what_is_wrong_with_its_device(
    monkeypatch, capsys, arguments, problem
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["nvml_cost", *arguments])
    with pytest.raises(SystemExit, match=r"^2$"):
        section.main(lambda _: pytest.fail("it measures"))
    assert capsys.readouterr().err.splitlines() == [problem]


@pytest.mark.integration
def test_figures_of_a_cpu_are_not_judged_and_those_without_a_limit_never(monkeypatch, capsys):
    figures = [Figure(name, "w", limit, "at most", [9]) for name, limit in (("a", 1), ("b", None))]
    monkeypatch.setattr(run, "run", lambda *_: run.Outcome(figures))
    assert run.main(["--cpu", "--only", "coding"]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"\bmet\b|\bno\b", printed)
    assert "none" in printed
    assert [figure.met for figure in figures] == [False, None]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["missing/found.json", ""])
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path, monkeypatch, option, name
):
    monkeypatch.setattr(run, "run", lambda *_: pytest.fail("a section runs"))
    with pytest.raises(SystemExit, match=f"{tmp_path}.* cannot be written: "):
        run.main(["--cpu", option, str(tmp_path / name)])


@pytest.mark.integration
def test_a_file_that_can_no_longer_be_written_loses_neither_the_table_nor_the_plot(
    tmp_path, monkeypatch, capsys
):
    full, plot = tmp_path / "full.json", tmp_path / "plot.png"
    figure = Figure("n", "w", 1.0, "at most", [0.5])

    def fills_the_disk(*_):
        full.symlink_to("/dev/full")
        return run.Outcome(figures=[figure])

    monkeypatch.setattr(run, "run", fills_the_disk)
    assert run.main(["--cpu", "--only", "coding", "--json", str(full), "--plot", str(plot)]) == 1
    printed = capsys.readouterr()
    assert "at most 1" in printed.out
    assert f"{full} could not be written: [Errno 28]" in printed.err
    assert plot.exists()


@pytest.mark.parametrize(
    "line",
    [
        '{"figure": {"name": "n", "wh',
        '{"figure": {"name": "n"}}',
        '{"figure": {"name": "n", "what": "w", "limit": 1, "bound": "at most", "ratios": []}}',
        '{"figure": 3}',
        '{"note": ["a list"]}',
        '{"note": "one", "skipped": "two"}',
    ],
)
def test_a_line_of_another_form_fails_its_section_and_loses_no_other_line(line):
    outcome = run.outcome_of(line + '\n{"skipped": "no GPU"}')
    assert [text.startswith("need a whole line with a ") for text in outcome.failed] == [True]
    assert outcome.skipped == ["no GPU"]
    assert not outcome.figures


@pytest.mark.integration
def test_a_section_ends_at_its_limit_with_all_that_it_started_and_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(section_process, "_GRACE_S", 0.2)
    script = "trap '' TERM; setsid sleep 60 & echo $! $PWD $TMPDIR; touch left; sleep 60"
    ended = section_process.run_to_end(["sh", "-c", script], "", 1.0, [], tmp_path)
    child, *folders = ended.printed.split()
    assert ended.problem == "ended after 1 s"
    assert not psutil.pid_exists(int(child)) or psutil.Process(int(child)).status() == "zombie"
    assert [Path(folder).parent for folder in folders] == [tmp_path, tmp_path]
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_ctrl_c_ends_the_section_and_the_script_which_shows_its_figures_and_writes_nothing(
    tmp_path, monkeypatch, capsys
):
    figure = {"name": "n", "what": "w", "limit": 1.0, "bound": "at most", "ratios": [0.5]}
    line, child = json.dumps({"figure": figure}), tmp_path / "child"
    script = f"echo '{line}'; echo $$ > {child}; kill -INT $PPID; exec sleep 60"
    monkeypatch.setattr(run, "command_of", lambda *_: ["sh", "-c", script])
    found = tmp_path / "found.json"
    assert run.main(["--cpu", "--only", "coding", "--only", "nccl", "--json", str(found)]) == 130
    printed = capsys.readouterr().out
    assert "Ended by SIGINT; nothing is written." in printed
    assert "at most 1" in printed
    assert "nccl ..." not in printed
    assert not psutil.pid_exists(int(child.read_text()))
    assert not found.exists()


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
    assert (figures["coding_int8"]["limit"], figures["coding_int8"]["met"]) == (0.5, None)
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
