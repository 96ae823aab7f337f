"""If torchrun's restarts may fail, attaching warns before they do."""

import pytest

from torchloom_threadlet.adapters.torchrun.adapter import _warn_of_restarts

RISKY = {
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "RANK": "0",
}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, 1),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, 0),
        ({"TORCHELASTIC_MAX_RESTARTS": "0"}, 0),
        ({"RANK": "1"}, 0),
    ],
)
def test_a_store_with_addresses_of_dead_ranks_is_warned_of_once(caplog, changes, lines):
    _warn_of_restarts(RISKY | changes)
    assert len(caplog.messages) == lines
    assert all("--rdzv-backend=c10d" in line for line in caplog.messages)
