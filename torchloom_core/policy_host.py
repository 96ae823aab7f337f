"""Call foreign policies and predictors so that none of them can harm the others.

The kernel calls :class:`PolicyHost` once a tick; the Weaver calls :func:`run_predictor`.
"""

import math
import signal
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, get_args

import numpy as np

from torchloom_core.actions import Action
from torchloom_core.decisions import (
    Forecast,
    PolicyFailed,
    PredictorFailed,
    Proposal,
)
from torchloom_core.fleet.view import FleetView
from torchloom_core.plugin import Hazard, Predictor
from torchloom_core.plugins import ActivePolicy

MAX_PROPOSALS = 10_000
OVERRAN = "overran"


class PolicyOverran(BaseException):
    """A policy used up its time; not an Exception, so that no policy catches it in passing."""


class Guard(Protocol):
    """Decides whether a policy overruns: by the clock live, by the record in a replay."""

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Raise PolicyOverran inside the block if the policy overruns at this input."""


class DeadlineGuard:
    """Interrupt a policy that takes more than ``budget_s``, by a timer signal.

    Works in the main thread; elsewhere a policy is not interrupted. Code that never returns to
    the interpreter cannot be interrupted either.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Run the block with the timer set."""
        del policy, seq
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._budget_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def _interrupt(self, signum: int, frame: types.FrameType | None) -> None:
        del signum, frame
        raise PolicyOverran(f"took more than {self._budget_s:g} s")


class RecordedGuard:
    """Let exactly those policies overrun that overran when the trajectory was recorded."""

    def __init__(self, overruns: Iterable[tuple[int, str, str]] = ()) -> None:
        self._overruns = {(seq, policy): detail for seq, policy, detail in overruns}

    @contextmanager
    def limit(self, policy: str, seq: int) -> Iterator[None]:
        """Raise at once if the record says so."""
        detail = self._overruns.get((seq, policy))
        if detail is not None:
            raise PolicyOverran(detail)
        yield


class PolicyHost:
    """The active policies, and which of them are quarantined."""

    def __init__(self, policies: Sequence[ActivePolicy], guard: Guard) -> None:
        self._policies = list(policies)
        self._guard = guard
        self.quarantined: dict[str, PolicyFailed] = {}

    def propose(
        self, view: FleetView, seq: int
    ) -> tuple[list[tuple[ActivePolicy, Proposal]], list[PolicyFailed]]:
        """Ask every healthy policy; return the proposals and who failed just now."""
        proposals: list[tuple[ActivePolicy, Proposal]] = []
        failures: list[PolicyFailed] = []
        for active in self._policies:
            if active.name in self.quarantined:
                continue
            try:
                with self._guard.limit(active.name, seq):
                    wanted = _collect(active.policy.on_tick(view))
            except PolicyOverran as error:
                failure = PolicyFailed(policy=active.name, rule=OVERRAN, detail=str(error))
            except Exception as error:  # noqa: BLE001 - foreign code
                failure = PolicyFailed(policy=active.name, rule="raised", detail=_describe(error))
            else:
                problem = next(filter(None, map(proposal_problem, wanted)), "")
                if not problem:
                    proposals += [(active, proposal) for proposal in wanted]
                    continue
                failure = PolicyFailed(policy=active.name, rule="garbage", detail=problem)
            self.quarantined[active.name] = failure
            failures.append(failure)
        return proposals, failures


def _collect(result: Any) -> list[Any]:
    if result is None:
        return []
    wanted: list[Any] = []
    for proposal in result:
        wanted.append(proposal)
        if len(wanted) > MAX_PROPOSALS:
            raise ValueError(f"need at most {MAX_PROPOSALS} proposals a tick")
    return wanted


def proposal_problem(proposal: Any) -> str:
    """Return the first rule that ``proposal`` breaks, or nothing."""
    if not isinstance(proposal, Proposal):
        return f"need a Proposal, was {type(proposal).__name__} {proposal!r:.60}"
    if not isinstance(proposal.action, get_args(Action)):
        return f"need an action, was {proposal.action!r:.60}"
    for name in ("gain_gpu_s", "cost_gpu_s", "expires_s"):
        value = getattr(proposal, name)
        if not _is_number(value) or not math.isfinite(value) or value < 0:
            return f"need a finite {name} >= 0, was {value!r}"
    if not _is_number(proposal.confidence) or not 0 <= proposal.confidence <= 1:
        return f"need a confidence in [0, 1], was {proposal.confidence!r}"
    if not isinstance(proposal.reason, str) or not all(isinstance(c, str) for c in proposal.cause):
        return "need a reason and causes that are strings"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def run_predictor(
    forecast_id: str,
    name: str,
    predictor: Predictor,
    view: FleetView,
    elapsed_s: Callable[[], float],
) -> Forecast | PredictorFailed:
    """Run one predictor on one view and check what it returns."""
    try:
        hazard = predictor.forecast(view)
    except Exception as error:  # noqa: BLE001 - foreign code
        return PredictorFailed(predictor=name, rule="raised", detail=_describe(error))
    if not isinstance(hazard, Hazard):
        problem = f"need a Hazard, was {type(hazard).__name__} {hazard!r:.60}"
        return PredictorFailed(predictor=name, rule="garbage", detail=problem)
    probability = np.asarray(hazard.probability)
    if probability.shape != (len(view),) or probability.dtype.kind != "f":
        problem = (
            f"need float probabilities of shape ({len(view)},), was {probability.dtype} "
            f"{probability.shape}"
        )
        return PredictorFailed(predictor=name, rule="garbage", detail=problem)
    judged = ~np.isnan(probability)
    if np.any((probability[judged] < 0) | (probability[judged] > 1)):
        worst = probability[judged][np.argmax(np.abs(probability[judged] - 0.5))]
        problem = f"need probabilities in [0, 1], was {worst!r}"
        return PredictorFailed(predictor=name, rule="garbage", detail=problem)
    rows: list[int] = np.flatnonzero(judged).tolist()
    return Forecast(
        id=forecast_id,
        predictor=name,
        horizon_s=float(predictor.horizon_s),
        hazard={view.workers[row]: float(probability[row]) for row in rows},
        why={view.workers[row]: str(text) for row, text in hazard.why.items()},
        latency_s=elapsed_s(),
    )


def _describe(error: BaseException) -> str:
    """Return the error and the line of the plugin that raised it, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code.co_filename.rsplit("/", 1)[-1] if trace else "?"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({code}:{trace.tb_lineno if trace else 0})"
