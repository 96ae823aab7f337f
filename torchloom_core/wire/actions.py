"""The actions on a run, as they are proposed, granted and recorded.

:mod:`torchloom_core.live.kernel.actions` carries out each kind.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from torchloom_core.wire.landscape import LandscapeRequest
from torchloom_core.wire.limits import KnobName, MetricName, Target, Text
from torchloom_core.wire.links import MAX_PAIRS, ProbeBytes
from torchloom_core.wire.messages import KnobValue, KnobValues, Rehearse, Survey
from torchloom_core.wire.preview import PreviewRequest


class Migrate(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="migrate"):
    """A warm standby joins, then ``group`` drains: make before break.

    Examples
    --------
    >>> from torchloom_core.plugin import Migrate, Proposal
    >>> Proposal(action=Migrate(group="g1"), reason="g1-0 runs hot", gain_gpu_s=900.0).net_gpu_s
    900.0
    """

    group: Target


class AdmitGroup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="admit"):
    """The standby ``group`` joins the run for good, in addition to the present groups.

    Examples
    --------
    >>> from torchloom_core.plugin import AdmitGroup
    >>> AdmitGroup(group="g3")
    AdmitGroup(group='g3')
    """

    group: Target


class DrainGroup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="drain"
):
    """``group`` leaves at a step boundary without a replacement; ``also`` at the same step.

    Examples
    --------
    >>> from torchloom_core.plugin import DrainGroup
    >>> DrainGroup(group="g1").groups, DrainGroup(group="g1", also=("g2",)).groups
    (('g1',), ('g1', 'g2'))
    """

    group: Target
    also: Annotated[tuple[Target, ...], msgspec.Meta(max_length=1024)] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """All groups that leave."""
        return tuple(dict.fromkeys((self.group, *self.also)))


class EvictGroup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="evict"):
    """Remove the hung ``group`` from the quorum, so that the other groups continue without it.

    ``then``: it may rejoin by itself (``wait``), its sidecars terminate it and its launcher
    restarts it (``restart``), or a standby joins and it is terminated (``replace``).

    Examples
    --------
    >>> from torchloom_core.plugin import EvictGroup
    >>> EvictGroup(group="g1")
    EvictGroup(group='g1', then='restart')
    """

    group: Target
    then: Literal["wait", "restart", "replace"] = "restart"


class ChangeKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="knob"):
    """Set a knob of one worker, or of all workers that have it when ``worker`` is None.

    Examples
    --------
    >>> from torchloom_core.plugin import ChangeKnob
    >>> ChangeKnob(knob="sync_every", value=64)
    ChangeKnob(knob='sync_every', value=64, worker=None)
    """

    knob: KnobName
    value: KnobValue
    worker: Target | None = None


class Guard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metric that is watched after a change, and its limit; above it the change is rolled back.

    Attributes
    ----------
    metric : str
        One that rises when a run gets worse: ``loss``, ``grad_norm``, ``step_time_s``.
    band : float
        How far the metric may rise, in multiples of its noise before the change.
    window_s : float
        How long it is measured before and watched after the change, seconds.

    Examples
    --------
    >>> from torchloom_core.plugin import Guard
    >>> Guard(metric="loss", window_s=60.0)
    Guard(metric='loss', band=3.0, window_s=60.0)
    """

    metric: MetricName
    band: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3.0
    window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0


class ChangeKnobs(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="knobs"
):
    """Set run-fenced knobs on all ranks at one step, or none of them.

    Without a ``guard`` the one of the config is used.

    Examples
    --------
    >>> from torchloom_core.plugin import ChangeKnobs, Guard
    >>> change = ChangeKnobs(values={"lr": 0.1, "clip_norm": 1.0}, guard=Guard(metric="loss"))
    >>> change.values, change.guard.band
    ({'lr': 0.1, 'clip_norm': 1.0}, 3.0)
    """

    values: Annotated[KnobValues, msgspec.Meta(min_length=1)]
    guard: Guard | None = None


class SaveCheckpoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """Save a checkpoint now, in one group or, when ``group`` is None, in all.

    Examples
    --------
    >>> from torchloom_core.plugin import SaveCheckpoint
    >>> SaveCheckpoint(), SaveCheckpoint(group="g1")
    (SaveCheckpoint(group=None), SaveCheckpoint(group='g1'))
    """

    group: Target | None = None


class PauseRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """Pause every training worker at its next step boundary.

    Examples
    --------
    >>> from torchloom_core.plugin import PauseRun
    >>> PauseRun()
    PauseRun()
    """


class ResumeRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="resume"):
    """Resume every paused worker.

    Examples
    --------
    >>> from torchloom_core.plugin import ResumeRun
    >>> ResumeRun()
    ResumeRun()
    """


class RewindRun(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="rewind"
):
    """All ranks return to the last checkpoint at one step, and ``skip`` batches from there.

    Examples
    --------
    >>> from torchloom_core.plugin import RewindRun
    >>> RewindRun(skip=200)
    RewindRun(skip=200)
    """

    skip: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class CollectDump(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dump"):
    """Collect stacks and the Flight Recorder's dump of one worker.

    Examples
    --------
    >>> from torchloom_core.plugin import CollectDump
    >>> CollectDump(worker="g1-0")
    CollectDump(worker='g1-0')
    """

    worker: Target


class ProbeLinks(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="probe"):
    """Measure the links from senders to receivers, all of ``pairs`` at the same time.

    A worker may be in one pair only, so that no two probes share a link. Each worker needs
    ``TORCHLOOM_LINK_ADDRESS`` in its environment: see ``view.can_be_probed``.

    Raises
    ------
    ValueError
        If a worker is named twice.

    Examples
    --------
    >>> from torchloom_core.plugin import ProbeLinks
    >>> ProbeLinks(pairs=(("g0-0", "g1-0"), ("g2-0", "g3-0"))).probe_bytes
    1048576
    """

    pairs: Annotated[
        tuple[tuple[Target, Target], ...], msgspec.Meta(min_length=1, max_length=MAX_PAIRS)
    ]
    probe_bytes: ProbeBytes = 1 << 20

    def __post_init__(self) -> None:
        """Refuse pairs that share a worker."""
        named: set[str] = set()
        for pair in self.pairs:
            for worker in pair:
                if worker in named:
                    raise ValueError(f"pairs: need each worker once, was {worker} twice")
                named.add(worker)


class MapLandscape(
    LandscapeRequest,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="landscape",
):
    """A standby maps the loss around the run's newest weights; the trainers are not involved.

    The standby's script must offer it, and only one standby task runs at a time. 0 ``points`` end
    the present task.

    Examples
    --------
    >>> from torchloom_core.plugin import MapLandscape
    >>> MapLandscape(points=400, seconds=30.0).side
    51
    """

    def operation(self, workers: Iterable[str], now: KnobValues) -> Survey:
        """Return the operation for these standbys; the desired values ``now`` are not used."""
        among = tuple(workers) if self.over > 1 else ()
        return Survey(**{**msgspec.structs.asdict(self), "among": among})


class PreviewChange(
    PreviewRequest, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="preview"
):
    """A standby trains with changed knobs and, as a control, without; the run is not affected.

    The standby's script must offer it, and only one standby task runs at a time. 0 ``steps`` end
    the present task.

    Examples
    --------
    >>> from torchloom_core.plugin import PreviewChange
    >>> change = PreviewChange(values={"lr": 0.02}, steps=100, repeats=5)
    >>> change.points, change.price_s(step_s=0.1)
    (1000, 100.0)
    """

    def operation(self, workers: Iterable[str], now: KnobValues) -> Rehearse:
        """Return the operation for a standby; ``now`` are the desired values of the run."""
        return Rehearse(**msgspec.structs.asdict(self), now={} if self.ends_task else now)


class Alert(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="alert"):
    """Report a condition of ``worker`` to people; the run is not changed.

    Examples
    --------
    >>> from torchloom_core.plugin import Alert, Proposal
    >>> alert = Alert(worker="g1-0", text="its loss is NaN")
    >>> Proposal(action=alert, reason="loss is NaN").net_gpu_s  # only an alert needs no gain
    0.0
    """

    worker: Target
    text: Text


class CordonNode(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="cordon"
):
    """Start no worker on ``node``, for ``lasts_s`` seconds or until it is uncordoned.

    Examples
    --------
    >>> from torchloom_core.plugin import CordonNode
    >>> CordonNode(node="n7", lasts_s=3600.0)
    CordonNode(node='n7', lasts_s=3600.0)
    """

    node: Target
    lasts_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


class UncordonNode(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="uncordon"):
    """Allow workers on ``node`` again.

    Examples
    --------
    >>> from torchloom_core.plugin import UncordonNode
    >>> UncordonNode(node="n7")
    UncordonNode(node='n7')
    """

    node: Target


Action = (
    Migrate
    | AdmitGroup
    | DrainGroup
    | EvictGroup
    | ChangeKnob
    | ChangeKnobs
    | SaveCheckpoint
    | PauseRun
    | ResumeRun
    | RewindRun
    | CollectDump
    | ProbeLinks
    | MapLandscape
    | PreviewChange
    | Alert
    | CordonNode
    | UncordonNode
)


def new_values(action: Action) -> KnobValues:
    """Return the knobs that an action sets, with their new values."""
    match action:
        case ChangeKnob(knob=knob, value=value):
            return {knob: value}
        case ChangeKnobs(values=values):
            return values
    return {}


def name_of(action: Action) -> str:
    """Return the action's kind as written in the config and the trajectory."""
    return str(action.__struct_config__.tag)


def plain_summary(action: Mapping[str, Any]) -> str:
    """Return kind and subject of a recorded action, whatever its kind.

    Examples
    --------
    >>> plain_summary({"kind": "drain", "group": "g1"})
    'drain group g1'
    >>> plain_summary({"kind": "landscape", "points": 0})
    'landscape end'
    """
    named = [f"{name} {action[name]}" for name in ("group", "node") if action.get(name)]
    ends = ["end"] if action.get("points") == 0 else []
    about = action.get("worker") or " ".join([*named, *ends])
    return f"{action.get('kind', '')} {about}".strip()
