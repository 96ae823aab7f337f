"""An arm of a study, a variant of the same job, and the counts of its verdicts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from torchloom_core.config.schema import Config
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.decisions import Verdict

ArmKind = Literal["bound", "baseline", "oracle", "candidate"]
"""``bound``: an upper bound; ``oracle``: knows the future; ``candidate``: under test."""

MEMBERSHIP_POLICY = "membership"
_MOST_ALERTS = 5

Interval = float | Literal["base", "first", "young", "daly", "tiers", "never"]
"""Seconds; ``base``: the config's, or Daly's; ``first``: the initial one of a run whose policy sets
the interval; ``tiers``: Daly's for the failures that checkpoints in memory do not survive."""

Foresight = Literal["", "no_failures", "random", "always", "oracle", "clairvoyant"]
"""Knowledge of the future that no real policy has."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job.

    An absent ``recovery`` is the config's, as are absent ``standbys``: warm groups, or ``all`` that
    standbys and spares allow. Remaining nodes are cold spares, so that every arm pays for the same
    nodes. A checkpoint costs ``save_s``, the config's if absent, and one in the memory of nodes
    ``memory_save_s``; 0: there is no such tier. On links, ``mode`` is that of a static arm.
    ``policies`` and ``predictors`` are as in the config, ``roles`` has the policies of roles;
    without policies there are no ticks.
    """

    name: str
    kind: ArmKind
    what: str
    needs_forecast: bool = False
    interval: Interval = "base"
    recovery: Literal["restart", "per_step"] | None = None
    standbys: int | Literal["all"] | None = None
    save_s: float | None = None
    memory_save_s: float = 0.0
    foresight: Foresight = ""
    alarms_per_node_day: float = 0.0
    mode: str = ""
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}
    roles: dict[str, dict[str, dict[str, Any]]] = {}

    def activated(self, config: Config) -> Config:
        """Return the config with the plugins of this arm, and no others."""
        roles = {
            role: replace(own, policies=self.roles.get(role, {}))
            for role, own in config.roles.items()
        }
        return replace(config, policies=self.policies, predictors=self.predictors, roles=roles)

    @property
    def grows(self) -> bool:
        """Whether its run may have more groups than the job is planned for."""
        return MEMBERSHIP_POLICY in self.policies


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals and verdicts: counts of one run, or means over runs.

    A proposal that is repeated at the next tick counts again. ``granted`` counts by kind of action,
    such as ``migrate`` or ``cordon``; ``denied`` by the arbiter's rule, with one reason of each in
    ``why_denied``; ``cordons`` by node. ``alerts`` has the texts of the first granted ones, each
    once.
    """

    proposed: float = 0.0
    granted: dict[str, float] = {}
    denied: dict[str, float] = {}
    why_denied: dict[str, str] = {}
    cordons: dict[str, float] = {}
    alerts: tuple[str, ...] = ()


def verdicts_of(verdicts: Sequence[Verdict]) -> Verdicts:
    """Return the counts of one run, with the first reason of each rule."""
    granted = [one for one in verdicts if one.granted]
    denied = [one for one in verdicts if not one.granted]
    why = {one.rule: one.reason for one in reversed(denied)}
    kinds = [(kind_of(one.action), one.action) for one in granted]
    return Verdicts(
        proposed=float(len(verdicts)),
        granted=_mean([Counter(name_of(one.action) for one in granted)]),
        denied=_mean([Counter(one.rule for one in denied)]),
        why_denied=dict(sorted(why.items())),
        cordons=_mean([Counter(node for kind, action in kinds for node in kind.cordons(action))]),
        alerts=_first(kind.alert_text(action) for kind, action in kinds),
    )


def mean_verdicts(runs: Sequence[Verdicts]) -> Verdicts:
    """Return the mean over runs, with the first reason of each rule."""
    why = {rule: reason for run in reversed(runs) for rule, reason in run.why_denied.items()}
    return Verdicts(
        proposed=sum(run.proposed for run in runs) / len(runs),
        granted=_mean([run.granted for run in runs]),
        denied=_mean([run.denied for run in runs]),
        why_denied=dict(sorted(why.items())),
        cordons=_mean([run.cordons for run in runs]),
        alerts=_first(text for run in runs for text in run.alerts),
    )


def _first(alerts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, alerts)))[:_MOST_ALERTS]


def _mean(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for count in counts for name in count})
    return {name: sum(count.get(name, 0.0) for count in counts) / len(counts) for name in names}
