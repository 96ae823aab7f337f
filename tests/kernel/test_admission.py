"""Which restarted workers are accepted on a cordoned node."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, three_groups
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.live.weaver.admission import unwanted
from torchloom_core.wire.messages import JoinRequest

KEY = "U"


def asks(run: Run, worker: str, node: str, min_groups: int = 1, incarnation: int = 2) -> str:
    group = hello(worker).group
    request = JoinRequest(
        run="run", worker=worker, incarnation=incarnation, public_key=KEY, group=group, node=node
    )
    kernel = run.kernel
    alive = kernel.fleet.alive(worker, run.now_ns)
    return unwanted(request, alive, kernel.fleet, kernel.run.training_groups(), min_groups)


@pytest.fixture
def run():
    run = three_groups(make_kernel())
    run.ask(CordonNode(node="node-a"))
    return run


def test_a_restart_on_a_cordoned_node_is_not_wanted_while_others_train(run):
    run.exit("a-0")
    assert asks(run, "a-0", "node-a") == "node node-a is cordoned and 2 other groups train"
    assert asks(run, "a-0", "node-b") == ""


def test_a_worker_that_the_run_needs_is_accepted_on_any_node(run):
    run.exit("a-0")
    assert asks(run, "a-0", "node-a", min_groups=3) == ""
    run.exit("b-0")
    assert asks(run, "a-0", "node-a", min_groups=0).endswith("1 other group trains")
    run.exit("c-0")
    assert asks(run, "a-0", "node-a", min_groups=0) == ""


def test_a_worker_that_trains_on_a_newly_cordoned_node_stays(run):
    assert asks(run, "a-0", "node-a", incarnation=1) == ""
    assert asks(run, "a-0", "node-a", incarnation=2) != ""
