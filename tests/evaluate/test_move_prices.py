"""The price of a move matches the fleet model, and prevents moves that do not pay."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import CONFIG, COSTS, JOB, candidate, event, scene_of, write
from tests.evaluate.test_closed_loop import drive
from tests.simulate.fleets import GPUS, S, Tier, fleet, gpu_s, lost_node, plain_job
from torchloom_core.lab.evaluate.goodput.job import kernel_config
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.plugin import Costs, Hazard, Reserve
from torchloom_policies.failure_forecast import FailureForecastPolicy

DURABLE = Tier(save_s=0.0, restart_s=20.0, interval_s=50.0)
SPARED = {"provision_s": 40.0, "warm_up_s": 40.0, "inspect_s": 100.0, "detect_s": 5.0}


def idle_gpu_s(moves, **changes):
    """Return what a failure at 300 s costs by waiting, 20 s after a group has moved or not."""
    job = plain_job(groups=4, standbys=1, spares=1, durable=DURABLE, **SPARED | changes)
    model = fleet(job, [lost_node(300, "n0", repair_s=500)], 1000)
    model.advance(280 * S)
    if moves:
        assert model.join("g4") == ""
        assert model.drain("g3") == ""
    gpu_time = gpu_s(model.finish())
    return gpu_time["restart"] + gpu_time.get("waiting", 0.0), job


def test_a_failure_without_a_standby_costs_its_price():
    idle, job = idle_gpu_s(moves=False)
    short, _ = idle_gpu_s(moves=True)
    costs = kernel_config(candidate(), CONFIG, job).costs
    certain = Reserve(costs, run_gpus=4.0 * GPUS, failures_per_s=0.0, left=-1)
    assert short - idle == certain.away_gpu_s(GPUS, 0.0) == 40 * 4 * GPUS


def test_an_inspection_costs_nothing_while_a_standby_is_idle():
    useful = []
    for inspect_s in (0.0, 100.0, 500.0):
        job = plain_job(groups=4, standbys=2, durable=DURABLE, **SPARED | {"inspect_s": inspect_s})
        model = fleet(job, [], 1000)
        assert model.join("g4") == ""
        assert model.drain("g3") == ""
        useful.append(gpu_s(model.finish())["useful"])
    assert useful == [useful[0]] * 3
    idle = Reserve(Costs(inspect_s=500.0), run_gpus=32.0, failures_per_s=0.0, left=1)
    assert idle.inspected_gpu_s(GPUS) == 0.0


class Crier:
    """Forecasts every hour that one group is more likely to fail; no group ever fails."""

    name = "crier"
    needs = ()
    horizon_s = 21_600.0
    every_s = 3600.0

    def __init__(self, suspected):
        self._suspected = suspected

    def forecast(self, view):
        probability = np.full(len(view), 0.05)
        probability[0] = self._suspected
        return Hazard(probability=probability)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return write(tmp_path_factory.mktemp("trace") / "calm.tltrace", [event(0, 1.0, "n0")])


def cried_wolf(calm, suspected, standbys):
    """Return the moves, and the granted cordons, of a run that acts on the crier."""
    job = replace(
        JOB, standbys=standbys, spares=3 - standbys, days=0.5, checkpoint_interval_s=1200.0
    )
    config = replace(CONFIG, evaluate=job, costs=replace(COSTS, checkpoint_s=0.0))
    options = FailureForecastPolicy.Options(predictor="crier", min_probability=0.0)
    policy = ActivePolicy("failure_forecast", FailureForecastPolicy(options))
    plugins = ActivePlugins((policy,), {"crier": Crier(suspected)})
    stage = scene_of(calm, evaluate=job)
    loop, fleet_of, result = drive(stage, plugins, config=config)
    assert not loop.quarantined
    assert result.migrations == fleet_of.moves
    return fleet_of.moves, loop.operations.granted.get("cordon", 0)


def test_a_forecast_with_poor_precision_is_ignored_with_few_standbys(calm):
    assert cried_wolf(calm, 0.08, standbys=1) == (0, 0)
    moves, cordons = cried_wolf(calm, 0.08, standbys=3)
    assert moves > 0
    assert cordons > 0


def test_a_certain_forecast_uses_the_last_standby(calm):
    moves, _ = cried_wolf(calm, 0.9, standbys=1)
    assert moves > 0
