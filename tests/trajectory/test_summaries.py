"""The one-line summary of a record."""

import msgspec

from torchloom_core.capabilities.alert import Alert
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.wire.decisions import Proposal, Proposed


def line_of(proposal):
    proposed = Proposed(id="p1.2", policy="tuner", proposal=proposal)
    return summarise("proposed", msgspec.to_builtins(proposed))


def test_the_text_of_an_alert_is_shown_once():
    alert_text = "the links cannot be probed"
    proposal = Proposal(action=Alert(worker="g0-0", text=alert_text), reason=alert_text)
    assert line_of(proposal) == f"p1.2 tuner proposes alert on g0-0: {alert_text}"
