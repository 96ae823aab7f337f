"""NVRx's heartbeats and sections are telemetry, and its launcher alone restarts a rank."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.adapters.installed import needs
from tests.threadlet.torchrun_ranks import Job
from torchloom_core.floor.errors import ConfigError

pytestmark = [needs("nvidia_resiliency_ext"), pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parent / "nvrx_trainer.py"


@pytest.fixture
def job(tmp_path, join_file, end_with_sidecars):
    own = {"TORCHLOOM_JOIN": str(join_file), "TORCHLOOM_HEARTBEAT_S": "0.2", "OMP_NUM_THREADS": "1"}
    command = [shutil.which("ft_launcher"), "--nproc-per-node", 1, "--max-restarts", 3]
    command += ["--ft-rank-section-timeouts", "load:30", TRAINER, "--journal", tmp_path]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            list(map(str, command)), env=os.environ | own, stderr=errors, cwd=tmp_path
        )
    yield Job(process, tmp_path, 1, ())
    end_with_sidecars(process)


async def test_heartbeats_and_sections_are_reported_and_the_launcher_restarts(weaver, job):
    await job.admit(weaver)
    for _ in range(2):
        batch = await weaver.beat(lambda batch: "section_load_s" in batch.metrics, "g0-0")
        assert {"heartbeat_interval_s", "step_time_s"} <= set(batch.metrics)
        os.kill(job.hellos[0].pid, signal.SIGKILL)
        weaver.enrolment.release("g0-0")
        await job.admit(weaver)


def test_what_is_no_client_is_refused_in_one_line():
    from torchloom_threadlet.adapters.nvrx import follow

    with pytest.raises(ConfigError, match="need a RankMonitorClient, was object"):
        follow(object(), None)
