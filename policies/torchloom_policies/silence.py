"""Alert of an unreachable worker, a trainer that hangs, or a metric that stops."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import (
    Alert,
    CollectDump,
    FleetView,
    Need,
    Positive,
    Proposal,
    Registry,
    Share,
    grow,
    hookimpl,
)

Rows = NDArray[np.bool_]


class SilencePolicy:
    """Alert once for each silence, and collect a dump of each trainer that hangs.

    There are three kinds of silence: no message arrives from a worker; heartbeats arrive but the
    trainer, in state ``training``, finishes no step; a metric that was reported stops while the
    trainer continues. An alert is repeated only after the silence has ended.

    When one rank hangs, the ranks that wait for it hang too: those furthest behind are reported
    first, up to ``one_by_one`` of them individually, and the rest are counted.
    """

    name = "silence"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.silence]``."""

        heartbeat_limit_s: Positive = 15.0
        """Longest time without any message from a worker, seconds."""
        progress_limit_s: Positive = 120.0
        """Longest time for one step of a trainer, checkpoints and warm-up included, seconds."""
        metrics: tuple[str, ...] = ()
        """Metrics that a training worker must keep reporting."""
        metric_limit_s: Positive = 30.0
        """Longest time without a valid sample of one of them, seconds."""
        dump_confidence: Share = 0.5
        """Probability that a dump shows why a trainer hangs, 0 to 1. Its gain is the GPU time of
        ``progress_limit_s``."""
        one_by_one: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
        """Workers reported individually for each kind of silence at one tick."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lost = _Reported()
        self._hung = _Reported()
        self._missing = {metric: _Reported() for metric in options.metrics}
        self.needs = tuple(Need(metric) for metric in options.metrics)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Report the silences that began since the last tick."""
        options = self._options
        absent = view.is_in("left", "gone")
        alive = ~absent & (view.heartbeat_age_s <= options.heartbeat_limit_s)
        lost = ~absent & ~alive
        yield from self._alert(
            self._lost.news(lost, over=~lost),
            view,
            lambda row: f"no message for {view.heartbeat_age_s[row]:.0f} s",
        )
        training = alive & view.is_in("training")
        stuck = view.progress_age_s > options.progress_limit_s
        hung = self._hung.news(training & stuck, over=absent | ~stuck)
        hung = hung[np.lexsort((-view.progress_age_s[hung], view.step[hung]))]
        yield from self._dump(hung, view)
        yield from self._alert(
            hung,
            view,
            lambda row: (
                f"no step after {view.step[row]} for {view.progress_age_s[row]:.0f} s, "
                "although its sidecar sends heartbeats"
            ),
        )
        for metric, reported in self._missing.items():
            yield from self._metric(metric, reported, training & ~stuck, absent, view)

    def _metric(
        self, metric: str, reported: "_Reported", at_work: Rows, absent: Rows, view: FleetView
    ) -> Iterator[Proposal]:
        age_s = view.age_s(metric)
        old = age_s > self._options.metric_limit_s
        missing = at_work & old & np.isfinite(age_s)
        yield from self._alert(
            reported.news(missing, over=absent | ~old),
            view,
            lambda row: f"{metric} missing for {age_s[row]:.0f} s, although its trainer continues",
        )

    def _dump(self, rows: NDArray[np.intp], view: FleetView) -> Iterator[Proposal]:
        for row in rows[: self._options.one_by_one]:
            yield Proposal(
                action=CollectDump(worker=view.workers[row]),
                reason=(
                    f"{view.workers[row]} finished no step for {view.progress_age_s[row]:.0f} s: "
                    "its stacks may show what it waits for"
                ),
                gain_gpu_s=self._options.progress_limit_s * view.costs.gpus_per_worker,
                confidence=self._options.dump_confidence,
            )

    def _alert(
        self, rows: NDArray[np.intp], view: FleetView, what: Callable[[int], str]
    ) -> Iterator[Proposal]:
        most = self._options.one_by_one
        for row in rows[:most]:
            text = f"{view.workers[row]} on {view.node[row] or 'an unknown node'}: {what(row)}"
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)
        if len(rows) > most:
            row = rows[most]
            text = f"{len(rows) - most} more workers like {view.workers[row]}: {what(row)}"
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)


class _Reported:
    """The workers whose present silence was already reported."""

    def __init__(self) -> None:
        self._reported: Rows = np.zeros(0, dtype=np.bool_)

    def news(self, silent: Rows, over: Rows) -> NDArray[np.intp]:
        """Return the silent rows not reported yet; reset the rows in ``over``."""
        reported = grow(self._reported, len(silent)) & ~over
        self._reported = reported | silent
        return np.flatnonzero(silent & ~reported)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(SilencePolicy)
