"""Probe: sidecars measure links between workers; training is not interrupted."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.live.capability import ActionKind, Plan, Run, Stages, listed
from torchloom_core.wire.links import ProbeAddress, measured_text
from torchloom_core.wire.operations import Probe

_NAMED = 20


class ProbeKind(ActionKind[ProbeLinks]):
    """One at a time, so that no two probes share a link; all its pairs at once."""

    message = ProbeLinks
    operations = (Probe,)
    changes_run = False
    side_by_side = True

    def target(self, action: ProbeLinks) -> str:
        """Return a short text of the pairs."""
        return f"probe:{_pairs_text(action.pairs, 1)}"

    def obstacle(self, action: ProbeLinks, run: Run) -> str:
        """Refuse a worker that cannot be probed, and a second probe."""
        named = [worker for pair in action.pairs for worker in pair]
        if problem := next(filter(None, (_problem(worker, run) for worker in named)), ""):
            return problem
        plans = run.plans.table.values()
        other = next((plan for plan in plans if isinstance(plan.action, ProbeLinks)), None)
        return f"probe {other.verdict} is under way: need one probe at a time" if other else ""

    def stages(self, action: ProbeLinks, run: Run) -> Stages:
        """Return a command to each sender."""
        stages = []
        for sender, receiver in action.pairs:
            if (at := _probe_address(receiver, run)) is not None:
                size = action.probe_bytes
                probe = Probe(receiver=receiver, probe_address=at, probe_bytes=size)
                stages.append(run.stage([run.fleet.row_of[sender]], probe))
        return Stages(tuple(stages))

    def summary(self, action: ProbeLinks, plan: Plan, run: Run) -> str:
        """Return each pair's result, or why there is none."""
        results = [
            f"{_text(pair)}: {_result(pair, command, plan, run)}"
            for pair, command in zip(action.pairs, plan.commands, strict=True)
        ]
        more = [f"and {len(results) - _NAMED} more"] if len(results) > _NAMED else []
        return "; ".join([*results[:_NAMED], *more])

    def shortfall(self, action: ProbeLinks, plan: Plan, run: Run) -> str:
        """Return the summary: a failed pair does not affect the others."""
        return self.summary(action, plan, run)

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``probe g0-0 -> g1-0, g2-0 -> g3-0``."""
        return f"probe {_pairs_text(action['pairs'], 3)}"


def _problem(worker: str, run: Run) -> str:
    if problem := run.not_present(worker):
        return problem
    need = "need TORCHLOOM_LINK_ADDRESS in its environment"
    return "" if _probe_address(worker, run) else f"worker {worker} cannot be probed: {need}"


def _probe_address(worker: str, run: Run) -> ProbeAddress | None:
    hello = run.fleet.hello[run.fleet.row_of[worker]]
    return hello.probe_address if "probe" in hello.actuators else None


def _result(pair: tuple[str, str], command: str, plan: Plan, run: Run) -> str:
    if command in plan.missed:
        return plan.missed[command]
    link = run.fleet.links.of.get(pair[0], {}).get(pair[1])
    is_new = link is not None and link.ts_ns >= plan.started_ns
    return measured_text(link.measured) if link and is_new else "nothing was measured"


def _pairs_text(pairs: Iterable[Iterable[str]], most: int) -> str:
    return listed([_text(pair) for pair in pairs], most)


def _text(pair: Iterable[str]) -> str:
    return " -> ".join(pair)


KIND = ProbeKind()
