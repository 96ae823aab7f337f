import socket
import subprocess
import sys

import pytest

from tests.deadlines import DEADLINE_S
from tests.pipeline.fleet import assert_same, undisturbed
from tests.pipeline.live_worker import attached
from tests.waiting import until
from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.generations import Join
from torchloom_threadlet.pipeline.rendezvous_link import RendezvousLink

pytestmark = pytest.mark.integration


def test_a_pipeline_goes_on_without_a_killed_worker_as_if_nothing_was(fleet):
    steps = 25
    four = fleet(4)
    four.start(steps, "w0", "w1", "w2", "w3")
    four.kill("w1", after_step=5)
    found = four.weights("w0", "w2", "w3")
    losses, weights = undisturbed(steps)
    assert four.losses("w0") == losses
    assert_same(found, weights)


@pytest.mark.long
def test_a_new_worker_takes_the_place_of_a_killed_one(fleet):
    steps = 600
    five = fleet(4)
    five.start(steps, "w0", "w1", "w2", "w3")
    five.kill("w0", after_step=5)
    until(lambda: max(five.losses("w1")) >= 10)
    five.start(steps, "w4")
    until(lambda: five.losses("w4"))
    found = five.weights("w1", "w2", "w3", "w4")
    losses, weights = undisturbed(steps)
    assert five.losses("w1") == losses
    seen = {step: loss for step, loss in five.losses("w4").items() if loss == loss}
    assert seen.items() <= losses.items()
    assert_same(found, weights)


@pytest.mark.long
def test_a_lost_layer_ends_the_others_with_one_line_that_names_it(fleet, tmp_path):
    two = fleet(2)
    two.start(1000, "w0", replicas=1)
    last = f"main('w1', {two.address!r}, 1000, {str(tmp_path)!r}, replicas=1)"
    command = [sys.executable, "-c", f"from tests.pipeline.live_worker import main; {last}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as left:
        two.kill("w0", after_step=3)
        _, errors = left.communicate(timeout=DEADLINE_S)
    assert left.returncode == 1
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == (
        "torchloom: w1: layers 0, 1, 2: all workers that held them have ended; start again from "
        "a checkpoint"
    )


@pytest.mark.long
def test_two_workers_killed_at_once_cost_no_step(fleet):
    steps = 40
    six = fleet(6)
    six.start(steps, *(f"w{number}" for number in range(6)))
    six.kill("w0", after_step=5)
    six.kill("w1", after_step=5)
    found = six.weights("w2", "w3", "w4", "w5")
    losses, weights = undisturbed(steps)
    assert six.losses("w2") == losses
    assert_same(found, weights)


def test_a_name_that_no_rendezvous_takes_is_refused_at_once():
    with pytest.raises(ConfigError, match="worker: need 1 to 64 letters"):
        attached("bad name!", "127.0.0.1:1")


def test_a_server_that_is_no_rendezvous_is_named_in_one_line(caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        join = Join(worker="w0", incarnation=1, store="127.0.0.1:1", layers=1)
        link = RendezvousLink(f"127.0.0.1:{port}", join, lambda generation: None)
        for _ in range(3):
            server.accept()[0].close()
        link.close(None)
    found = [record.getMessage() for record in caplog.records if str(port) in record.getMessage()]
    assert len(found) == 1
    assert found[0].startswith(f"no rendezvous at 127.0.0.1:{port}, it is tried again: ")
