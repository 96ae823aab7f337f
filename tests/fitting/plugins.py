"""Small predictors to fit: they read the metric heat, or nothing."""

import msgspec
import numpy as np

from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.plugin import Hazard, Need

DAY_S = 86_400.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metrics: tuple[str, ...] = ()
    horizon_s: float = 2 * DAY_S
    every_s: float = DAY_S


class Quiet:
    """Does not learn: hot is likely to fail."""

    name = "quiet"
    Options = Options

    def __init__(self, options):
        self.options = options
        self.horizon_s, self.every_s = options.horizon_s, options.every_s
        self.needs = tuple(Need(metric) for metric in options.metrics)

    def forecast(self, view):
        heat = view.latest(self.options.metrics[0])
        return Hazard(probability=np.clip(heat, 0.0, 1.0), why={0: "it is the first"})


class Heat(Quiet):
    """Learns the mean heat before failures, and is certain of failure at that heat."""

    name = "heat"
    level = 1.0

    def fit(self, examples):
        failed = np.zeros(0)
        for example in examples:
            heat = example.view.latest("heat")
            failed = np.append(failed, heat[example.outcome == 1.0])
        self.level = float(np.nanmean(failed))

    def forecast(self, view):
        heat = view.latest("heat")
        return Hazard(probability=1 / (1 + np.exp(4 * (self.level - heat))))

    def parts(self):
        return {"heat.json": msgspec.json.encode(self.level)}

    def restore(self, parts):
        self.level = msgspec.json.decode(parts["heat.json"], type=float)


class Blind(Quiet):
    """Returns the same probability for all."""

    name = "blind"

    def forecast(self, view):
        return Hazard(probability=np.full(len(view), 0.25))


def answering(probability):
    """Return a predictor class that returns the function's probabilities for a view."""

    class Answering(Quiet):
        name = "says"

        def forecast(self, view):
            return Hazard(probability=probability(view))

    return Answering


def info(cls):
    return PluginInfo(cls.name, "predictor", cls.name, "tests", "1.0", cls=cls)


def warm(seed=0, strength=1.0):
    """Return a daily metric that is higher the day before a failure."""
    random = np.random.default_rng(seed)

    def values(failed):
        soon = np.vstack([failed[1:], failed[-1:]]) | failed
        return strength * soon + random.normal(size=failed.shape)

    return values
