"""Notice what no longer says anything: a worker, a trainer behind its heartbeat, a metric."""

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

    Three things count as silence: nothing is heard of a worker; its sidecar is heard but its
    trainer, in state ``training``, finishes no step; a metric that it used to report stops while
    the trainer goes on. Each is told again only after it was over.

    When one rank hangs, all that wait for it hang too: those furthest behind are reported first,
    ``one_by_one`` of them singly, and the rest are counted.
    """

    name = "silence"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.silence]``.

        Attributes
        ----------
        heartbeat_limit_s : float
            Longest time without any message of a worker, seconds.
        progress_limit_s : float
            Longest time for one step of a trainer, checkpoints and warm-up included, seconds.
        metrics : tuple of str
            Metrics that a worker must not stop reporting while it trains.
        metric_limit_s : float
            Longest time without a valid sample of one of them, seconds.
        dump_confidence : float
            Probability that a dump shows why a trainer hangs, 0 to 1. The dump is priced at the
            GPU time that one more wait of ``progress_limit_s`` costs.
        one_by_one : int
            Workers reported singly for each kind of silence at one tick.
        """

        heartbeat_limit_s: Positive = 15.0
        progress_limit_s: Positive = 120.0
        metrics: tuple[str, ...] = ()
        metric_limit_s: Positive = 30.0
        dump_confidence: Share = 0.5
        one_by_one: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lost = _Told()
        self._hung = _Told()
        self._mute = {metric: _Told() for metric in options.metrics}
        self.needs = tuple(Need(metric) for metric in options.metrics)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Report what fell silent since the last tick."""
        options = self._options
        absent = view.is_in("left", "gone")
        heard = ~absent & (view.heartbeat_age_s <= options.heartbeat_limit_s)
        lost = ~absent & ~heard
        yield from self._alert(
            self._lost.news(lost, over=~lost),
            view,
            lambda row: f"nothing heard for {view.heartbeat_age_s[row]:.0f} s",
        )
        training = heard & view.is_in("training")
        stuck = view.progress_age_s > options.progress_limit_s
        hung = self._hung.news(training & stuck, over=absent | ~stuck)
        hung = hung[np.lexsort((-view.progress_age_s[hung], view.step[hung]))]
        yield from self._dump(hung, view)
        yield from self._alert(
            hung,
            view,
            lambda row: (
                f"no step after {view.step[row]} for {view.progress_age_s[row]:.0f} s, "
                "though its sidecar is heard"
            ),
        )
        for metric, told in self._mute.items():
            yield from self._metric(metric, told, training & ~stuck, absent, view)

    def _metric(
        self, metric: str, told: "_Told", at_work: Rows, absent: Rows, view: FleetView
    ) -> Iterator[Proposal]:
        age_s = view.age_s(metric)
        old = age_s > self._options.metric_limit_s
        mute = at_work & old & np.isfinite(age_s)
        yield from self._alert(
            told.news(mute, over=absent | ~old),
            view,
            lambda row: f"{metric} missing for {age_s[row]:.0f} s, though its trainer goes on",
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
        singly = self._options.one_by_one
        for row in rows[:singly]:
            text = f"{view.workers[row]} on {view.node[row] or 'an unknown node'}: {what(row)}"
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)
        if len(rows) > singly:
            row = rows[singly]
            text = f"{len(rows) - singly} more workers like {view.workers[row]}: {what(row)}"
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)


class _Told:
    """What has been told already, per worker."""

    def __init__(self) -> None:
        self._told: Rows = np.zeros(0, dtype=np.bool_)

    def news(self, silent: Rows, over: Rows) -> NDArray[np.intp]:
        """Return the rows that are silent and were not told; forget where it is over."""
        told = grow(self._told, len(silent)) & ~over
        self._told = told | silent
        return np.flatnonzero(silent & ~told)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(SilencePolicy)
