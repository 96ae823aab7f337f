"""What a record says in one line."""

import msgspec

from torchloom_core.trajectory.summaries import summarise
from torchloom_core.wire.actions import Alert
from torchloom_core.wire.events import Proposal, Proposed


def line_of(proposal):
    proposed = Proposed(id="p1.2", policy="tuner", proposal=proposal)
    return summarise("proposed", msgspec.to_builtins(proposed))


def test_the_text_of_an_alert_is_shown_once():
    said = "the links cannot be probed"
    proposal = Proposal(action=Alert(worker="g0-0", text=said), reason=said)
    assert line_of(proposal) == f"p1.2 tuner proposes alert on g0-0: {said}"
