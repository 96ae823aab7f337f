"""Decide when a pipeline changes to another assignment, and move stages off nodes that may fail."""

from collections.abc import Iterable

import msgspec
import numpy as np

from torchloom_core.plugin import (
    FleetView,
    NeedForecast,
    NeedOffers,
    NotNegative,
    Positive,
    Proposal,
    Registry,
    RegroupWorkers,
    Share,
    SplitProgram,
    hookimpl,
)


class ReplanPolicy:
    """Propose planned changes of programs that are split over workers, once they pay.

    A rendezvous offers another assignment when a worker joins, when one is slow, or when experts
    are loaded unevenly. It saves the share s of each step, and costs a stall. A change is expected
    to last as long as the present membership, which is the time watched over one more than the
    changes seen in it. So

        gain = s * GPUs * min(horizon_s, watched_s / (changes + 1)),   cost = stall_s * GPUs,

    and in a run that often loses workers a small gain is left alone.

    With a ``predictor`` it also proposes that workers on nodes which may fail give up their parts:
    a failure costs ``costs.detect_s`` and the stall of an unplanned change, the move ``stall_s``.
    """

    name = "replan"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.replan]``."""

        settle_s: NotNegative = 10.0
        """How long a change has to be possible before it is proposed, seconds."""
        horizon_s: Positive = 3600.0
        """A change is expected to last this long at most, seconds."""
        again_s: NotNegative = 60.0
        """After a proposal for a program none follows for this long, seconds."""
        predictor: str = ""
        """Predictor of failures; empty: no stage is moved before a failure."""
        min_probability: Share = 0.5
        """Least failure probability for which a stage is moved, 0 to 1."""
        stall_s: NotNegative = 0.5
        """How long a stage's move stalls the program, seconds."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._next_ns: dict[str, int] = {}
        named = (NeedForecast(options.predictor),) if options.predictor else ()
        self.needs = (NeedOffers(), *named)
        self.status = ""

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Propose the move of stages at risk, else the change that is offered, if it pays."""
        for role, program in view.programs.items():
            if not program.is_reachable or program.outlook.phase != "running":
                continue
            if view.now_ns < self._next_ns.get(role, 0):
                continue
            proposal = self._move(program, view) or self._change(program, view)
            if proposal is not None:
                self._next_ns[role] = view.now_ns + round(self._options.again_s * 1e9)
                yield proposal

    def _change(self, program: SplitProgram, view: FleetView) -> Proposal | None:
        offer, options = program.offer, self._options
        if offer is None or not offer.present_step_s:
            return None
        if view.now_ns - program.offered_ns < options.settle_s * 1e9:
            return None
        saved = 1 - offer.step_s / offer.present_step_s
        lasts_s = min(options.horizon_s, program.mean_life_s(view.now_ns))
        gpus = len(program.workers) * view.costs.gpus_per_worker
        gain, cost = saved * lasts_s * gpus, offer.stall_s * gpus
        self.status = f"{program.role}: {offer.why}: gain {gain:.0f}, cost {cost:.0f} GPU-s"
        if gain <= cost:
            return None
        return Proposal(
            action=_regroup(program, program.outlook.left_out),
            reason=f"{offer.why}: steps {saved:.0%} shorter, for a stall of {offer.stall_s:.1f} s; "
            f"the membership is expected to last {lasts_s:.0f} s",
            gain_gpu_s=gain,
            cost_gpu_s=cost,
        )

    def _move(self, program: SplitProgram, view: FleetView) -> Proposal | None:
        options = self._options
        if not options.predictor or view.forecast(options.predictor) is None:
            return None
        hazard = view.hazard(options.predictor)
        rows = np.flatnonzero(hazard >= options.min_probability).tolist()
        places = {view.group[row] for row in rows} | {view.node[row] for row in rows} - {""}
        nodes = program.outlook.nodes
        leaving = [one for one in program.workers if {one, nodes.get(one, one)} & places]
        if not leaving:
            return None
        names = ", ".join(leaving)
        without = {*leaving, *program.outlook.left_out}
        if not _can_do_without(program, without):
            self.status = f"{program.role}: {names} may fail, and no other worker has their layers"
            return None
        gpus = len(program.workers) * view.costs.gpus_per_worker
        waits = [one.took_s for one in program.generations if one.cause]
        failure_s = view.costs.detect_s + (max(waits) if waits else options.stall_s)
        probability = float(np.nanmax(hazard))
        return Proposal(
            action=_regroup(program, tuple(sorted(without))),
            reason=f"{names} may fail with {probability:.0%}: others take their layers first",
            gain_gpu_s=failure_s * gpus,
            cost_gpu_s=options.stall_s * gpus,
            confidence=probability,
        )


def _can_do_without(program: SplitProgram, without: set[str]) -> bool:
    """Return whether others hold each layer and each expert."""
    present = program.outlook.assignment
    if present is None:
        return False
    own = present.layers_by_worker()
    left = {layer for name, layers in own.items() if name not in without for layer in layers}
    experts = all(not held or set(held) - without for held in present.experts)
    return len(left) == present.layers and experts


def _regroup(program: SplitProgram, without: tuple[str, ...]) -> RegroupWorkers:
    present = program.outlook.assignment
    generation = present.generation if present else 0
    return RegroupWorkers(role=program.role, without=without, generation=generation)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(ReplanPolicy)
