"""The fleet model against published results of real runs with known inputs."""

import pytest

from experiments.formulas import monte_carlo
from experiments.formulas.monte_carlo import fleet, periodic_hits, plain_job
from tests.simulate.fleets import GPUS, gpu_s, job_fault
from torchloom_core.lab.simulate.scenario import Tier
from torchloom_core.plugin import daly_s, ettr

DAY_S = 86_400


def test_thirty_groups_of_torchft_commit_four_steps_in_five():
    """torchft, 30 groups of 10 L40S, a failure every 60 s: 82.3 % of steps commit."""
    job = plain_job(groups=30, recovery="per_step", step_s=10.9, rejoin_s=24.0)
    result = fleet(job, periodic_hits(60.0), 60.0 * 3000).finish()
    committed = result.steps_committed * 10.9 / result.wall_s
    assert committed == pytest.approx(0.823, abs=0.02)
    assert committed == pytest.approx(1 - 10.9 / 60, abs=0.003)
    assert result.ettr == pytest.approx(0.812, abs=0.02)


def test_llama_3_is_over_nine_tenths_effective():
    """Llama 3 405B: 16,384 H100, 54 days, 419 unexpected interruptions, > 90 % effective.

    M = 11,135 s is published. Assumed: a checkpoint costs 30 s, a failure is noticed in 60 s and
    restarted from in 180 s, and checkpoints are saved at Daly's interval.
    """
    mtbf_s = 11_135
    ettrs = []
    for seed in range(8):
        result = monte_carlo.play_checkpoints(
            seed,
            54 * DAY_S // mtbf_s,
            mtbf_s=mtbf_s,
            save_s=30,
            restart_s=180,
            detect_s=60,
            interval_s=daly_s(save_s=30, mtbf_s=mtbf_s),
        )
        assert 340 < result.failures < 500
        ettrs.append(result.ettr)
    mean, error = monte_carlo.estimate(ettrs)
    assert mean - 3.5 * error > 0.90
    exact = ettr(797, save_s=30, mtbf_s=mtbf_s, restart_s=180, detect_s=60)
    assert mean == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize("rate", [6.50, 2.34], ids=["RSC-1", "RSC-2"])
@pytest.mark.parametrize(("downtime_s", "interval_s"), [(300, 600), (300, 1200), (120, 1800)])
def test_twelve_thousand_gpus_of_rsc_have_metas_ettr(rate, downtime_s, interval_s):
    """Meta's estimate at its failures per 1000 node-days, 1,500 nodes, checkpoints of 5 s.

    (Kokolis et al., 2025, "Revisiting reliability", arXiv 2410.21680.) Only where the estimate
    holds: (u0 + tau/2)/M well below 0.2.
    """
    mtbf_s = DAY_S / (1500 * rate / 1000)
    lost = (downtime_s + interval_s / 2) / mtbf_s
    assert lost < 0.15
    ettrs = [
        monte_carlo.play_checkpoints(
            seed,
            500,
            mtbf_s=mtbf_s,
            save_s=5,
            restart_s=downtime_s,
            detect_s=0,
            interval_s=interval_s,
        ).ettr
        for seed in range(6)
    ]
    estimate = (1 - lost) / (1 + 5 / interval_s)
    assert monte_carlo.estimate(ettrs)[0] == pytest.approx(estimate, abs=0.02)


def test_the_fixed_case_is_met_exactly():
    """Steps of 250 s, a save every 4 steps (10 s), restart 10 s, failures at 600 and 1300."""
    job = plain_job(step_s=250.0, durable=Tier(save_s=10.0, restart_s=10.0, interval_s=1000.0))
    result = fleet(job, [job_fault(600), job_fault(1300)], 3000.0).finish()
    assert gpu_s(result)["lost"] == 1290 * GPUS
    assert gpu_s(result)["restart"] == 20 * GPUS
