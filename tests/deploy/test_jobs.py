"""Jobs that a scheduler starts from what ``torchloom deploy`` writes, with the real scheduler."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.slurm_cluster import slurm_cluster
from tests.nats_servers import free_ports
from tests.waiting import until
from torchloom_core.cli.deploy_command import deploy

pytestmark = [pytest.mark.integration, pytest.mark.long]

SCRIPT = Path(__file__).with_name("ddp_script.py")
BIN = Path(sys.executable).parent
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
NO_GROUPS = "[arbiter]\nmin_groups = 0\n"


def torchloom(*arguments):
    result = subprocess.run([BIN / "torchloom", *arguments], capture_output=True, text=True)
    return result.stdout if result.returncode == 0 else ""


def steer_and_drain(config, ranks):
    """Set a knob on all ranks of the job at one step, then drain it."""
    at = ["--config", str(config)]

    def training():
        answer = torchloom("status", "--json", *at)
        workers = json.loads(answer)["workers"] if answer else []
        return workers if [w["state"] for w in workers] == ["training"] * ranks else None

    workers = until(training)
    assert f"lr = 0.01 on {ranks} workers at step" in torchloom("knob", "set", "lr", "0.01", *at)
    assert "done: g0 drained" in torchloom("drain", "g0", *at)
    return {worker["node"] for worker in workers}


def test_a_slurm_job_of_two_nodes_trains_with_a_weaver_on_the_first(tmp_path):
    deploy("slurm", to=tmp_path)
    (tmp_path / "more.toml").write_text(NO_GROUPS)
    with slurm_cluster(tmp_path / "slurm") as environment:
        ours = {"CONFIG": "more.toml", "TORCHLOOM_STATE": str(tmp_path), "RANKS": "2", **QUIET}
        submit = ["sbatch", "--parsable", "--cpus-per-task=1", "torchloom.sbatch", SCRIPT]
        result = subprocess.run(
            submit, cwd=tmp_path, env=environment | ours, capture_output=True, text=True
        )
        job = result.stdout.strip()
        state = tmp_path / f"torchloom-{job}"
        until((state / "join.json").exists)
        assert steer_and_drain(state / "torchloom.toml", 4) == {"n1", "n2"}

        def ended():
            show = ["scontrol", "show", "job", job]
            shown = subprocess.run(show, env=environment, capture_output=True, text=True).stdout
            return shown if "JobState=RUNNING" not in shown and "COMPLETING" not in shown else None

        assert "JobState=COMPLETED" in until(ended)
    output = (tmp_path / f"slurm-{job}.out").read_text()
    assert output.count("0 problem") == 2, output
    assert not list(tmp_path.glob("torchloom-*/weaver.pid"))


def test_a_torchx_app_trains_with_its_weaver(tmp_path):
    torchx = shutil.which("torchx")
    if torchx is None:
        pytest.skip("torchx is not installed")
    deploy("torchx", to=tmp_path)
    shutil.copy(SCRIPT, tmp_path)
    state = tmp_path / "state"
    port = min(free_ports(2))
    run = [torchx, "run", "--scheduler", "local_cwd", "--wait", "torchloom_component.py:train"]
    options = ["--script", SCRIPT.name, "--state", state, "--port", str(port)]
    path = f"{BIN}:{os.environ['PATH']}"
    environment = os.environ | QUIET | {"PATH": path, "HOME": str(tmp_path)}
    with (tmp_path / "log").open("w") as log:
        app = subprocess.Popen(
            [*run, *map(str, options), "--config", NO_GROUPS],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            until((state / "join.json").exists)
            steer_and_drain(state / "torchloom.toml", 2)
        finally:
            app.terminate()
            app.wait()
