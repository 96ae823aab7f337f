"""What a record says in one line."""

import msgspec

from torchloom_core.trajectory.summaries import summarise
from torchloom_core.wire.actions import Alert, Migrate
from torchloom_core.wire.events import Proposal, Proposed


def line_of(proposal):
    proposed = Proposed(id="p1.2", policy="tuner", proposal=proposal)
    return summarise("proposed", msgspec.to_builtins(proposed))


def test_a_proposal_tells_what_it_is_expected_to_gain_and_to_cost():
    proposal = Proposal(
        action=Migrate(group="g1"),
        reason="it is hot",
        gain_gpu_s=4000.0,
        cost_gpu_s=500.0,
        confidence=0.25,
    )
    assert line_of(proposal) == (
        "p1.2 tuner wants migrate group g1: it is hot; "
        "gains 4,000.0 GPU-s with probability 0.25, costs 500.0"
    )


def test_what_an_alert_tells_is_told_once():
    said = "the links cannot be probed"
    proposal = Proposal(action=Alert(worker="g0-0", text=said), reason=said)
    assert line_of(proposal) == f"p1.2 tuner wants alert on g0-0: {said}"
