import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import CONFIG, JOB, candidate, setting_of, some_events, write
from torchloom_core.lab.evaluate.goodput.run import StudyTask
from torchloom_core.lab.evaluate.parallel import Workforce

ray = pytest.importorskip("ray")


@pytest.fixture
def local_ray(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.integration
@pytest.mark.slow
def test_a_ray_cluster_gives_what_one_process_gives(tmp_path, local_ray):
    bundle = write(tmp_path / "small.tltrace", some_events())
    quick = replace(CONFIG, evaluate=replace(JOB, days=1.0))
    setting = setting_of(bundle, quick)
    study_tasks = [StudyTask(setting=setting, arm=candidate(), seed=seed) for seed in range(3)]
    alone = {study_task.seed: run for study_task, run in Workforce().play(study_tasks)}
    on_ray = {e.seed: run for e, run in Workforce(jobs=2, backend="ray").play(study_tasks)}
    assert on_ray == alone
