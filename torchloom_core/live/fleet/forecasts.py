"""Schedule forecasts, and store the newest one of each predictor; part of the kernel."""

from collections.abc import Callable, Mapping

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.api import Predictor
from torchloom_core.wire.decisions import ForecastWanted, Notice, Output
from torchloom_core.wire.events import Forecast, PredictorFailed

_NEVER_NS = -(1 << 62)


class Forecasts:
    """The active predictors: one request at a time to each, none to quarantined ones.

    A forecast applies to a worker on its node at the time of the request: after a hello from
    another node the worker has no forecast until the next answer.

    Attributes
    ----------
    newest : dict of str to Forecast
        The newest forecast of each predictor.
    failed : dict of str to PredictorFailed
        The quarantined predictors, and why.
    silent : set of str
        Predictors that have not yet forecast a probability.
    """

    def __init__(self, predictors: Mapping[str, Predictor]) -> None:
        self._every_ns = {
            name: round(predictor.every_s * SECOND_NS) for name, predictor in predictors.items()
        }
        self._last_request_ns: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._node_of: dict[str, str] = {}
        self._moved: dict[str, set[str]] = {}
        self.newest: dict[str, Forecast] = {}
        self.failed: dict[str, PredictorFailed] = {}
        self.silent = set(predictors)

    def request(self, now_ns: int, number: Callable[[], str]) -> list[Output]:
        """Return the requests that are due; ``number`` makes their ids."""
        outputs: list[Output] = []
        for name, every_ns in self._every_ns.items():
            rest_ns = now_ns - self._last_request_ns.get(name, _NEVER_NS)
            if name in self._waiting or name in self.failed or rest_ns < every_ns:
                continue
            self._last_request_ns[name] = now_ns
            self._waiting.add(name)
            self._moved[name] = set()
            outputs.append(ForecastWanted(id=number(), predictor=name))
        return outputs

    def take(self, answer: Forecast | PredictorFailed) -> list[Output]:
        """Take a predictor's answer; a failure quarantines it."""
        self._waiting.discard(answer.predictor)
        if isinstance(answer, PredictorFailed) or answer.hazard:
            self.silent.discard(answer.predictor)
        if isinstance(answer, Forecast):
            moved = self._moved.get(answer.predictor, set())
            hazard = {worker: p for worker, p in answer.hazard.items() if worker not in moved}
            self.newest[answer.predictor] = msgspec.structs.replace(answer, hazard=hazard)
            return []
        self.failed[answer.predictor] = answer
        text = f"predictor {answer.predictor} is quarantined: {answer.rule}: {answer.detail}"
        return [Notice(kind="predictor_failed", text=text)]

    def forget(self, worker: str) -> None:
        """Forget the node of a worker."""
        self._node_of.pop(worker, None)

    def settle(self, worker: str, node: str) -> None:
        """Set a worker's node; forecasts for it on another node are dropped."""
        before = self._node_of.get(worker, node)
        self._node_of[worker] = node
        if before == node:
            return
        for moved in self._moved.values():
            moved.add(worker)
        for forecast in self.newest.values():  # each has a dict of its own, made in take
            forecast.hazard.pop(worker, None)
