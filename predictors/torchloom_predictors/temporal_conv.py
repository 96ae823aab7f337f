"""Predict failures from the course of recent telemetry with a small neural network."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import msgspec
import numpy as np

from torchloom_core.lab.learning import (
    FitSize,
    Reasons,
    Rows,
    RowSample,
    Scale,
    arrays_bytes,
    arrays_part,
    in_words,
    json_part,
    step_means,
)
from torchloom_core.plugin import (
    Example,
    FleetView,
    Floats,
    Hazard,
    ModelError,
    Need,
    Positive,
    Registry,
    hookimpl,
)

_LATER = 0.2
"""The last share of the training time, on which the number of epochs is chosen."""

_MOST_EPOCHS, _PATIENCE = 50, 10
"""Most epochs of the search, and epochs without a lower loss there that end it."""

_EPOCHS_UNTRIED = 10
"""Number of epochs if one of the two parts has no failure."""

_KERNEL, _BATCH, _RATE = 3, 256, 3e-3

_AT_ONCE = 4096
"""Workers per batch of a forecast."""

_FAR = 10.0
"""Values are clipped at this many spreads from the median."""

_CARD, _ARRAYS = "temporal_conv.json", "temporal_conv.safetensors"


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's fields other than weights.

    ``prior`` is the share of positive worker moments, ``shift`` corrects the network's log odds.
    """

    metrics: tuple[str, ...]
    steps: int
    prior: float
    shift: float


class TemporalConvPredictor:
    """Convolve each worker's recent telemetry, looking only backwards, into log odds.

    Dilated causal convolutions (Bai, Kolter and Koltun, "An Empirical Evaluation of Generic
    Convolutional and Recurrent Networks for Sequence Modeling", arXiv 1803.01271), doubling the
    dilation until the last output covers the whole window. Each metric has two channels: its
    deviation from the median in spreads, averaged over ``step_s``, and whether it was present.

    Only a share s of the healthy moments is sampled, and failures have the weight w, so that both
    classes weigh the same. The odds that the network learns are w/s times too high, so log(s/w) is
    added to its log odds (King and Zeng, "Logistic Regression in Rare Events Data", 2001, section
    4.1). The number of epochs is the one with the lowest loss on the last fifth of the training
    time, a horizon after the rest; then the network is trained on all rows.
    """

    name = "temporal_conv"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.temporal_conv]``."""

        metrics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = (
            "gpu_temp_celsius",
            "gpu_power_watts",
        )
        window_s: Positive = 3600.0
        """Length of the window, seconds."""
        step_s: Positive = 60.0
        """Averaging time of metrics, seconds."""
        channels: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
        """Width of the network."""
        max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 20_000
        """Most healthy moments of workers to learn from."""
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0
        """Of the sample, the initial weights and the order."""
        horizon_s: Positive = 3600.0
        every_s: Positive = 60.0

    def __init__(self, options: Options) -> None:
        # Imported here, as it takes seconds that only a run with this predictor should pay.
        import torch

        self._torch: Any = torch
        self._options = options
        self._steps = max(1, round(options.window_s / options.step_s))
        self._learned: Learned | None = None
        self._scale = Scale(np.empty(0), np.empty(0))
        self._network: Any = None
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = tuple(Need(metric, options.window_s) for metric in options.metrics)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and without a sample."""
        probability = np.full(len(view), np.nan)
        windows = self._windows(view)
        rows = np.flatnonzero(np.isfinite(windows).any(axis=1))
        if self._learned is None or not len(rows):
            return Hazard(probability=probability)
        inputs = self._inputs(windows[rows])
        probability[rows] = self._judge(inputs)
        why = Reasons(rows, probability, self._learned.prior, lambda at: self._explain(inputs[at]))
        return Hazard(probability=probability, why=why)

    def _windows(self, view: FleetView) -> Floats:
        """Return ``(workers, metrics x steps)`` means over each step, NaN without samples."""
        windows = [view.window(need.metric, need.window_s) for need in self.needs]
        return np.concatenate([step_means(window, self._steps) for window in windows], axis=1)

    def _inputs(self, windows: Floats) -> Floats:
        """Return ``(rows, 2 x metrics, steps)``: deviations in spreads, and whether known."""
        by_metric = windows.reshape(len(windows), len(self.needs), self._steps)
        z = self._scale.spreads_off(by_metric.swapaxes(1, 2)).swapaxes(1, 2)
        known = ~np.isnan(z)
        inputs = np.concatenate([np.where(known, z, 0.0).clip(-_FAR, _FAR), known], axis=1)
        return np.asarray(inputs, dtype=np.float32)

    def _judge(self, inputs: Floats) -> Floats:
        """Return ``(rows,)`` probabilities."""
        assert self._learned is not None
        log_odds = np.empty(len(inputs))
        with self._alone(), self._torch.no_grad():
            for start in range(0, len(inputs), _AT_ONCE):  # limits the memory of the layers
                part = self._torch.from_numpy(inputs[start : start + _AT_ONCE])
                log_odds[start : start + _AT_ONCE] = self._network(part)[:, 0, -1].double().numpy()
        probability: Floats = 0.5 * (1 + np.tanh((log_odds + self._learned.shift) / 2))
        return probability

    def _explain(self, inputs: Floats) -> list[str]:
        """Return for each row the metric whose usual course would lower the probability most."""
        judged = []
        for metric in range(len(self.needs)):
            otherwise = inputs.copy()
            otherwise[:, metric] = 0.0
            otherwise[:, metric + len(self.needs)] = 1.0
            judged.append(self._judge(otherwise))
        best = np.argmin(judged, axis=0)
        past = in_words(self._options.window_s)
        return [
            f"{self._options.metrics[metric]} had an unusual course in the last {past}: without "
            f"that it would be {judged[metric][row]:.2g}"
            for row, metric in enumerate(best.tolist())
        ]

    def fit(self, examples: Iterable[Example]) -> None:
        """Train the network; moments without a sample are left out."""
        sample = RowSample(self._options.max_healthy, self._options.seed)
        for example in examples:
            windows = self._windows(example.view)
            known = np.isfinite(windows).any(axis=1)
            sample.add(example.view.now_ns, windows, np.where(known, example.outcome, np.nan))
        rows = sample.rows(self.name)
        by_metric = rows.features.reshape(len(rows.features), len(self.needs), self._steps)
        self._scale = Scale.of(by_metric.swapaxes(1, 2).reshape(-1, len(self.needs)))
        weight = float(np.count_nonzero(~rows.failed) / rows.failed.sum())
        with self._alone():
            epochs = self._best_number(rows, weight)
            *_, self._network = islice(self._train(rows, weight), epochs)
        self._learned = Learned(
            metrics=self._options.metrics,
            steps=self._steps,
            prior=1 / (1 + weight / rows.share),
            shift=math.log(rows.share / weight),
        )

    def learning_bytes(self, size: FitSize) -> int:
        """Return the most memory that learning takes, bytes."""
        return size.sample_bytes(self._options.max_healthy, len(self.needs) * self._steps)

    def _best_number(self, rows: Rows, weight: float) -> int:
        """Return the number of epochs with the lowest loss on the later part."""
        earlier, later = rows.split(_LATER, self.horizon_s)
        if not (earlier.has_both_outcomes and later.has_both_outcomes):
            return _EPOCHS_UNTRIED
        inputs, outcomes = self._tensors(later)
        losses: list[float] = []
        for network in islice(self._train(earlier, weight), _MOST_EPOCHS):
            with self._torch.no_grad():
                losses.append(float(self._loss(network(inputs), outcomes, weight)))
            if len(losses) - int(np.argmin(losses)) > _PATIENCE:
                break
        return int(np.argmin(losses)) + 1

    def _train(self, rows: Rows, weight: float) -> Iterator[Any]:
        """Yield the network after each epoch, without end."""
        order = np.random.default_rng(self._options.seed)
        inputs, outcomes = self._tensors(rows)
        network = self._build()
        adam = self._torch.optim.Adam(network.parameters(), lr=_RATE)
        batches = math.ceil(len(outcomes) / _BATCH)
        while True:
            for batch in np.array_split(order.permutation(len(outcomes)), batches):
                adam.zero_grad()
                self._loss(network(inputs[batch]), outcomes[batch], weight).backward()
                adam.step()
            yield network

    def _tensors(self, rows: Rows) -> tuple[Any, Any]:
        inputs = self._torch.from_numpy(self._inputs(rows.features))
        return inputs, self._torch.from_numpy(rows.failed.astype(np.float32))

    def _loss(self, outputs: Any, outcomes: Any, weight: float) -> Any:
        return self._torch.nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0, -1], outcomes, pos_weight=self._torch.tensor(weight)
        )

    def _build(self) -> Any:
        """Return a network from ``(rows, channels, steps)`` to ``(rows, 1, steps)``."""
        nn, width = self._torch.nn, self._options.channels
        layers: list[Any] = []
        inputs, reach, dilation = 2 * len(self.needs), 1, 1
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(self._options.seed)
            while not layers or reach < self._steps:
                before = dilation * (_KERNEL - 1)
                layers += [
                    nn.ConstantPad1d((before, 0), 0.0),
                    nn.Conv1d(inputs, width, _KERNEL, dilation=dilation),
                    nn.ReLU(),
                ]
                inputs, reach, dilation = width, reach + before, 2 * dilation
            return nn.Sequential(*layers, nn.Conv1d(width, 1, 1))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Use one thread, as another order of sums would give other weights."""
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            yield
        finally:
            self._torch.set_num_threads(threads)

    def parts(self) -> Mapping[str, bytes]:
        """Return weights, medians and spreads as safetensors, and the rest as JSON."""
        arrays = {name: weight.numpy() for name, weight in self._network.state_dict().items()}
        arrays |= {"middle": self._scale.middle, "spread": self._scale.spread}
        return {_CARD: msgspec.json.encode(self._learned), _ARRAYS: arrays_bytes(arrays)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the parts; ModelError if one is damaged, or fitted with other options."""
        learned = json_part(parts, _CARD, Learned)
        wanted = (self._options.metrics, self._steps)
        found = (learned.metrics, learned.steps)
        if found != wanted:
            raise ModelError(
                f"{_CARD}: need metrics and steps of the options, {wanted}, was {found}"
            )
        network = self._build()
        own = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
        scale = dict.fromkeys(("middle", "spread"), (len(self.needs),))
        middle, spread, *weights = arrays_part(parts, _ARRAYS, {**scale, **own})
        network.load_state_dict(
            {name: self._torch.from_numpy(w) for name, w in zip(own, weights, strict=True)}
        )
        self._scale = Scale(middle, spread)
        self._network, self._learned = network, learned


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(TemporalConvPredictor)
