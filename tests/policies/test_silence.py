import numpy as np

from torchloom_core.plugin import Alert, CollectDump
from torchloom_core.testing import view_of
from torchloom_policies.silence import SilencePolicy

NAN = float("nan")


def policy(**options):
    limits = {"heartbeat_limit_s": 10.0, "progress_limit_s": 60.0, "metric_limit_s": 20.0}
    return SilencePolicy(SilencePolicy.Options(**{**limits, **options}))


def texts(proposals):
    return [p.action.text for p in proposals if isinstance(p.action, Alert)]


def dumped(proposals):
    return [p.action.worker for p in proposals if isinstance(p.action, CollectDump)]


def test_a_worker_that_stops_sending_is_reported_once():
    silence = policy()
    ages = [0.0, 11.0, 12.0, 1.0, 30.0]
    reports = [
        texts(silence.on_tick(view_of(workers=2, heartbeat_age_s=[0.0, age]))) for age in ages
    ]
    assert [len(r) for r in reports] == [0, 1, 0, 0, 1]
    assert reports[1] == ["w1 on n1: no message for 11 s"]


def test_a_worker_whose_process_ended_is_not_silent():
    silence = policy()
    for state in ("gone", "left"):
        assert not list(silence.on_tick(view_of(workers=1, heartbeat_age_s=99.0, state=state)))


def test_a_trainer_that_hangs_behind_its_heartbeat_is_dumped_and_reported_once():
    silence = policy()
    hung = view_of(workers=2, progress_age_s=[1.0, 61.0], step=[9, 7])
    proposals = list(silence.on_tick(hung))
    assert dumped(proposals) == ["w1"]
    assert texts(proposals) == [
        "w1 on n1: no step after 7 for 61 s, although its sidecar sends heartbeats"
    ]
    assert all(p.net_gpu_s > 0 for p in proposals if isinstance(p.action, CollectDump))
    assert not list(silence.on_tick(hung))
    assert not list(silence.on_tick(view_of(workers=2)))
    assert dumped(silence.on_tick(hung)) == ["w1"]


def test_a_hang_is_reported_once_even_if_heartbeats_are_interrupted():
    silence = policy()
    assert dumped(silence.on_tick(view_of(workers=1, progress_age_s=61.0)))
    silent = view_of(workers=1, progress_age_s=75.0, heartbeat_age_s=11.0)
    assert texts(silence.on_tick(silent)) == ["w0 on n0: no message for 11 s"]
    assert not list(silence.on_tick(view_of(workers=1, progress_age_s=80.0)))


def test_only_training_workers_must_make_progress():
    silence = policy()
    for state in ("standby", "joining", "paused", "draining"):
        assert not list(silence.on_tick(view_of(workers=1, progress_age_s=999.0, state=state)))


def test_if_all_hang_the_furthest_behind_are_dumped_and_the_rest_counted():
    view = view_of(workers=5000, progress_age_s=100.0, step=[9] * 4000 + [8] + [9] * 999)
    proposals = list(policy(one_by_one=2).on_tick(view))
    assert dumped(proposals) == ["w4000", "w0"]
    assert texts(proposals)[2].startswith("4998 more workers like w1: no step after 9")
    assert len(proposals) == 5


def test_a_metric_that_disappears_is_reported_once_and_again_after_its_return():
    silence = policy(metrics=("loss",), metric_limit_s=2.0)
    gap = [[1.0, 1.0, 1.0, 1.0], [1.0, NAN, NAN, NAN], [NAN] * 4]
    reports = [
        texts(silence.on_tick(view_of({"loss": values})))
        for values in (gap, gap, np.ones((3, 4)), gap)
    ]
    assert [len(r) for r in reports] == [1, 0, 0, 1]
    assert reports[0] == ["w1 on n1: loss missing for 3 s, although its trainer continues"]


def test_a_silent_or_hung_worker_is_not_reported_for_its_metrics_as_well():
    gap = {"loss": [[1.0, NAN, NAN, NAN]]}
    for ages in ({"heartbeat_age_s": 11.0}, {"progress_age_s": 61.0}):
        silence = policy(metrics=("loss",), metric_limit_s=2.0)
        assert len(texts(silence.on_tick(view_of(gap, **ages)))) == 1


def test_a_metric_may_stop_while_the_run_does_not_train():
    silence = policy(metrics=("loss",), metric_limit_s=2.0)
    assert not list(silence.on_tick(view_of({"loss": [[1.0, NAN, NAN, NAN]]}, state="paused")))
