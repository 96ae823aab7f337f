"""Call foreign policies and predictors so that none of them can harm the others.

The kernel calls :class:`PolicyHost` once a tick; the Weaver calls :func:`run_predictor`.
"""

import signal
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from torchloom_core.plugin.api import Hazard, Predictor
from torchloom_core.plugin.contract import GarbageError, _checked, pace_problem
from torchloom_core.plugin.foreign import one_line, shown, told
from torchloom_core.plugin.view import FleetView
from torchloom_core.plugins import ActivePolicy
from torchloom_core.wire.events import Forecast, PolicyFailed, PredictorFailed, Proposal
from torchloom_core.wire.limits import MAX_TEXT

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

    The signal comes again until the policy ends, as one may swallow the first interrupt.
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
        handler = signal.signal(signal.SIGALRM, self._interrupt)
        timer = signal.setitimer(signal.ITIMER_REAL, self._budget_s, self._budget_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def _interrupt(self, signum: int, frame: types.FrameType | None) -> None:
        del signum
        if frame is None or frame.f_code.co_filename in _GUARD_FILES:
            return  # the policy is not begun or over: raised here it would hit the kernel
        raise PolicyOverran(
            f"took more than {self._budget_s:g} s ({_place(frame.f_code, frame.f_lineno)})"
        )


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
                    wanted = _collect(active.policy.on_tick(view.twin()))
            except KeyboardInterrupt:
                raise  # a person's Ctrl-C, which may well arrive while a policy is at work
            except PolicyOverran as error:
                failure = PolicyFailed(policy=active.name, rule=OVERRAN, detail=str(error))
            except GarbageError as error:
                detail = f"{error} ({_home(active.policy, 'on_tick')})"
                failure = PolicyFailed(policy=active.name, rule="garbage", detail=detail)
            except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
                detail = _describe(error, active.policy, "on_tick")
                failure = PolicyFailed(policy=active.name, rule="raised", detail=detail)
            else:
                proposals += [(active, proposal) for proposal in wanted]
                continue
            self.quarantined[active.name] = failure
            failures.append(failure)
        return proposals, failures


def _collect(result: Any) -> list[Proposal]:
    if result is None:
        return []
    if not isinstance(result, Iterable):
        raise GarbageError(f"need proposals, was {type(result).__name__} {shown(result)}")
    wanted: list[Proposal] = []
    for proposal in result:
        if len(wanted) == MAX_PROPOSALS:
            raise GarbageError(f"need at most {MAX_PROPOSALS} proposals a tick, were more")
        wanted.append(_checked(proposal))
    return wanted


def run_predictor(
    forecast_id: str,
    name: str,
    predictor: Predictor,
    view: FleetView,
    elapsed_s: Callable[[], float],
) -> Forecast | PredictorFailed:
    """Run one predictor on one view and check what it returns."""
    try:
        hazard = _judged(predictor, view)
    except KeyboardInterrupt:
        raise
    except GarbageError as error:
        detail = f"{error} ({_home(predictor, 'forecast')})"
        return PredictorFailed(predictor=name, rule="garbage", detail=detail)
    except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
        detail = _describe(error, predictor, "forecast")
        return PredictorFailed(predictor=name, rule="raised", detail=detail)
    return Forecast(
        id=forecast_id,
        predictor=name,
        horizon_s=float(predictor.horizon_s),
        hazard=hazard.probability,
        why={view.workers[row]: text for row, text in hazard.why.items()},
        latency_s=elapsed_s(),
    )


def _judged(predictor: Predictor, view: FleetView) -> Hazard:
    """Return a checked copy of what the predictor says, with probabilities by worker."""
    hazard: Any = predictor.forecast(view)
    if problem := pace_problem(predictor):
        raise GarbageError(problem)
    if not isinstance(hazard, Hazard):
        raise GarbageError(f"need a Hazard, was {type(hazard).__name__} {shown(hazard)}")
    probability = np.asarray(hazard.probability)
    if probability.shape != (len(view),) or probability.dtype.kind != "f":
        raise GarbageError(
            f"need float probabilities of shape ({len(view)},), was {probability.dtype} "
            f"{probability.shape}"
        )
    judged = ~np.isnan(probability)
    if np.any((probability[judged] < 0) | (probability[judged] > 1)):
        worst = probability[judged][np.argmax(np.abs(probability[judged] - 0.5))]
        raise GarbageError(f"need probabilities in [0, 1], was {float(worst)!r}")
    if not isinstance(hazard.why, Mapping):
        raise GarbageError(f"need why as a dict, was {type(hazard.why).__name__}")
    why = {int(row): _sentence(text) for row, text in hazard.why.items()}
    strange = [row for row in why if not 0 <= row < len(view)]
    if strange:
        raise GarbageError(f"need rows below {len(view)} in why, was {strange[0]}")
    rows: list[int] = np.flatnonzero(judged).tolist()
    return Hazard(probability={view.workers[row]: float(probability[row]) for row in rows}, why=why)


def _sentence(text: Any) -> str:
    sentence = str(text)
    if len(sentence) > MAX_TEXT or (not sentence.isascii() and told(sentence) != sentence):
        raise GarbageError(f"need texts of at most {MAX_TEXT} characters, was {told(sentence):.60}")
    return sentence


def _describe(error: BaseException, plugin: object, method: str) -> str:
    """Return the error and the last line of the plugin's own that led to it, in one line."""
    home = _code(plugin, method)
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(f, n) for f, n in frames if home and f.f_code.co_filename == home.co_filename]
    frame, number = (own or frames)[-1]
    return f"{one_line(error)} ({_place(frame.f_code, number)})"


def _code(plugin: object, method: str) -> types.CodeType | None:
    code = getattr(getattr(type(plugin), method, None), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _home(plugin: object, method: str) -> str:
    """Return where the plugin's method stands."""
    code = _code(plugin, method)
    return _place(code, code.co_firstlineno) if code else type(plugin).__name__


def _place(code: types.CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line}"


_GUARD_FILES = {contextmanager.__code__.co_filename, _place.__code__.co_filename}
