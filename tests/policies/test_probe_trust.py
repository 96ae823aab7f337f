"""Probes that tell of another bandwidth than the next steps show."""

from torchloom_policies.allreduce.probe_trust import ProbeTrust
from torchloom_policies.allreduce.step_samples import StepSample

SLOW, QUICK = 5e6, 5e9
LATENCY_S = {"none": 1e-4}


def step(number):
    """Return a step that took what it takes over a slow link."""
    return StepSample(
        now_s=float(number),
        step=number,
        mode="none",
        ranks=4,
        every=1.0,
        step_s=1.2,
        compute_s=0.2,
        compress_s=0.0,
        wire_s=1.0,
        overlap_s=0.0,
        sent_bytes=SLOW,
        gradient_bytes=SLOW / 1.5,
        reductions=1.0,
    )


def refute(trust, asked_s, number):
    trust.probed(asked_s, SLOW, QUICK, LATENCY_S, number)
    assert trust.refuted_by(step(number + 1)) is not None


def test_two_rounds_that_were_wrong_are_enough_and_two_answers_of_one_are_not():
    trust = ProbeTrust()
    refute(trust, 1.0, 1)
    refute(trust, 1.0, 2)
    assert not trust.trouble
    refute(trust, 3.0, 3)
    assert "probes told of 4e+04 Mbit/s where the allreduce has 40" in trust.trouble


def test_once_the_links_are_others_probes_are_believed_again_until_one_is_wrong():
    trust = ProbeTrust()
    refute(trust, 1.0, 1)
    refute(trust, 2.0, 2)
    trust.again()
    assert not trust.trouble
    refute(trust, 3.0, 3)
    assert trust.trouble
