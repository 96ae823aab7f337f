"""The report of the demo of split programs finds what a run must not do."""

import json
from dataclasses import replace

import pytest

from torchloom_core.demos.mpmd.report import Report
from torchloom_core.demos.mpmd.run import Loss, Run
from torchloom_core.demos.mpmd.script import EXPERTS, PIPELINE

STEPS = 40


def journal(path, steps=STEPS, loss=lambda step: 1 / step, end="a"):
    rows = [
        {"t": float(step), "committed": True, "step": step, "loss": loss(step)}
        for step in range(1, steps + 1)
    ]
    rows.append({"step": steps, "weights": {"0": end}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def played(part, folder, victim, workers, **journals):
    run = Run(replace(part, steps=STEPS), folder)
    for name in part.workers:
        journal(folder / f"{name}.jsonl", **journals)
    run.processes.read_logs()
    run.losses.append(Loss(victim, 20, 20.5, "an answer", workers, 0.2))
    return run


@pytest.fixture
def report(tmp_path):
    pipeline = played(PIPELINE, tmp_path / "p", "w1", 6)
    pipeline.losses.append(Loss("w3", 30, 30.5, "another", 5, 0.2))
    journal(tmp_path / "p" / "undisturbed.jsonl")
    pipeline.undisturbed.read()
    worse = {"loss": lambda step: 2.0 if step > 20 else 1.0}
    experts = [played(EXPERTS[0], tmp_path / "e0", "w2", 3, **worse)]
    experts += [played(part, tmp_path / part.name, "w2", 3) for part in EXPERTS[1:]]
    return Report(pipeline, pipeline.undisturbed, experts)


def test_a_run_as_it_should_be_passes(report):
    assert all(report.promises().values())
    assert report.losses_of(report.experts[0]) == (1.0, 2.0, 2.0)


def test_another_loss_other_weights_and_a_lost_step_fail(report):
    log = report.pipeline.logs["w0"]
    log.steps[3]["loss"] += 1e-12
    log.end["weights"]["0"] = "b"
    del log.steps[-1]
    failed = [text for text, held in report.promises().items() if not held]
    assert len(failed) == 3
