"""A kind of another package fails in any way: the kernel goes on, and says so in one line."""

import pytest

from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.drain.kind import DrainKind
from torchloom_core.live.kernel.actions import kinds
from torchloom_core.live.kernel.actions.guarded import GuardedKind
from torchloom_core.live.kernel.actions.kind import ActionKind
from torchloom_core.testing.small_run import SmallRun, hellos
from torchloom_core.wire.decisions import Outcome, Verdict

METHODS = sorted(
    name for name, found in vars(ActionKind).items() if callable(found) and name[0] != "_"
)
UNASKED = {
    "alert_text", "cordons", "describe", "is_done", "restored", "shortfall", "subject", "undone",
    "warning",
}  # fmt: skip


def fail(*_):
    raise SystemExit(3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", [fail, lambda *_: object()], ids=["raises", "wrong type"])
def test_a_kind_that_fails_ends_no_kernel(monkeypatch, caplog, method, what):
    broken = GuardedKind("drain", type("Broken", (DrainKind,), {method: what})())
    found = kinds.kind_named
    monkeypatch.setattr(kinds, "kind_named", lambda n: broken if n == "drain" else found(n))
    run = SmallRun(hellos({"drain": None}))
    outputs = run.carry_out(DrainGroup(group="g0"))
    [verdict] = [output for output in outputs if isinstance(output, Verdict)]
    ends = [output for output in outputs if isinstance(output, Outcome)]
    assert not verdict.granted or len(ends) == 1
    if what is fail and method not in UNASKED:
        assert any(text.startswith(f"capability drain: {method}: ") for text in caplog.messages)
