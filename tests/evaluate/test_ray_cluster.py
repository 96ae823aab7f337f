"""A backtest on a Ray cluster of two nodes gives the report of one machine, whatever is killed."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.evaluate.episodes import TORCHLOOM_TOML, some_events, write

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.long]

TORCHLOOM = Path(sys.executable).with_name("torchloom")
REPORTS = ("report.html", "report.json")


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes of one core each on loopback, with a raylet each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "small.tltrace", some_events())
    (tmp_path / "torchloom.toml").write_text(TORCHLOOM_TOML)
    return tmp_path


def evaluation(out, *words):
    options = ["--policy", "failure_forecast", "--predictor", "fault_history", "--seeds", "4"]
    command = [TORCHLOOM, "evaluate", "small.tltrace", *options, "--out", out, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(process):
    _, errors = process.communicate(timeout=3 * DEADLINE_S)
    assert process.returncode == 0, errors
    return errors


def busy_worker(node, evaluating):
    """Return a worker process of a node once it plays a run."""
    raylet = node.all_processes["raylet"][0].process.pid
    while evaluating.poll() is None:
        for child in psutil.Process(raylet).children(recursive=True):
            with suppress(psutil.Error):
                if child.cmdline()[0].startswith("ray::_play"):
                    return child
        time.sleep(0.005)
    pytest.fail(f"no worker of the node played a run: {evaluating.communicate()[1]}")


def test_a_killed_worker_and_a_lost_node_change_no_byte_of_the_report(folder, cluster):
    ended(evaluation("alone"))
    at = cluster.address
    on_ray = evaluation("on-ray", "--jobs", "-1", "--backend", "ray", "--ray-address", at)
    head, node = sorted(cluster.list_all_nodes(), key=lambda one: not one.is_head())
    for one in (node, head):
        busy_worker(one, on_ray).kill()
    busy_worker(node, on_ray)
    cluster.remove_node(node, allow_graceful=False)
    ended(on_ray)
    for name in REPORTS:
        assert (folder / "on-ray" / name).read_bytes() == (folder / "alone" / name).read_bytes()
