"""The contract of plugins, which :mod:`torchloom_core.lab.activation.discovery` checks.

Each function returns the first broken rule, in one line.
"""

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeGuard, get_args

import msgspec
import numpy as np

from torchloom_core.floor.errors import PluginError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Hazard, Predictor
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.effector import BUILT_IN, Event, Subscription
from torchloom_core.interface.foreign import shown, text_of
from torchloom_core.interface.needs import (
    Need,
    NeedFaults,
    NeedForecast,
    NeedLabels,
    NeedNotes,
    NeedOffers,
    NeedPast,
    PolicyNeed,
)
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.capabilities import decode_open, installed
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import Outcome, Proposal, Verdict
from torchloom_core.wire.limits import MAX_TEXT
from torchloom_core.wire.requests import PERSON
from torchloom_core.wire.wording import one_place

Kind = Literal["policy", "predictor", "effector"]

SECTIONS: dict[Kind, str] = {
    "policy": "policies",
    "predictor": "predictors",
    "effector": "effectors",
}
"""The table of the config for each kind."""

_METHODS: dict[Kind, tuple[str, str]] = {
    "policy": ("on_tick", "view"),
    "predictor": ("forecast", "view"),
    "effector": ("send", "delivery"),
}

_NEEDS: dict[Kind, tuple[type[msgspec.Struct], ...]] = {
    "policy": (Need, NeedFaults, NeedPast, NeedLabels, NeedNotes, NeedForecast, NeedOffers),
    "predictor": (Need, NeedFaults, NeedPast, NeedLabels),
}

_TAKEN = ("random", "row_rule", "auto", "scripted")
"""Names of baselines and of the oracle's forecasts in reports."""

MODEL = "model"
"""The key of ``[predictors.<name>]`` that names a fitted model; a plugin cannot use it."""

MAX_WINDOW_S = 400 * 86_400.0
"""The longest window of a need, seconds."""

MAX_SAMPLES = 100_000
"""The most ticks of a window, which is stored for every worker."""

MAX_PACE_S = 1e9

MAX_NEEDS = 10_000

_BELONGS_INTO_NEEDS: dict[Kind, dict[str, str]] = {
    "policy": {
        "fault_memory_s": "a NeedFaults",
        "predictors": "a NeedForecast for each",
        "needs_skill": "a NeedForecast with skilled=True",
    },
    "predictor": {"fault_memory_s": "a NeedFaults"},
}


def contract_problem(kind: Kind, cls: Any) -> str:
    """Return the first rule of the contract that the class breaks, or an empty string."""
    if not inspect.isclass(cls):
        return f"need a class, was {type(cls).__name__} {cls!r:.60}"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        return f"need a class attribute name that is an identifier, was {name!r:.60}"
    if name == PERSON:
        return f"need a name other than {PERSON}, which is reserved for people's requests"
    if kind == "predictor" and name in _TAKEN:
        return f"need a name other than {', '.join(_TAKEN)}, which are reserved for reports"
    options = getattr(cls, "Options", None)
    if not (inspect.isclass(options) and issubclass(options, msgspec.Struct)):
        return f"need a class attribute Options that is a msgspec.Struct, was {options!r:.60}"
    if not options.__struct_config__.forbid_unknown_fields:
        return "need Options with forbid_unknown_fields=True, or a misspelt option is not noticed"
    if kind == "effector" and name in BUILT_IN:
        return f"need a name other than {', '.join(BUILT_IN)}, which are built in"
    if kind != "predictor" and "mode" in options.__struct_encode_fields__:
        return "need Options without a field called mode, which is the Weaver's own"
    if kind == "predictor" and MODEL in options.__struct_encode_fields__:
        return f"need Options without a field called {MODEL}, which names a fitted model"
    return (
        _signature_problem(cls, *_METHODS[kind], is_async=kind == "effector")
        or _signature_problem(cls, "__init__", "options")
        or (hasattr(cls, "lapsed") and _signature_problem(cls, "lapsed", "view", "proposal"))
        or misplaced_problem(kind, cls)
    )


def misplaced_problem(kind: Kind, plugin: Any) -> str:
    """Return which attribute has no effect because it belongs into ``needs``."""
    found = [name for name in _BELONGS_INTO_NEEDS.get(kind, ()) if hasattr(plugin, name)]
    if not found:
        return ""
    return f"need {_BELONGS_INTO_NEEDS[kind][found[0]]} in needs, was an attribute {found[0]}"


def subscriptions_problem(effector: Any) -> str:
    """Return why an effector's ``subscriptions`` are invalid, or an empty string."""
    subscriptions = getattr(effector, "subscriptions", None)
    if not isinstance(subscriptions, Sequence) or not subscriptions:
        return f"need at least one Subscription in .subscriptions, was {subscriptions!r:.80}"
    kinds = get_args(Event)
    for one in subscriptions:
        if not isinstance(one, Subscription) or one.event not in kinds:
            names = ", ".join(kind.__name__ for kind in kinds)
            return f"need a Subscription to one of {names}, was {one!r:.80}"
        if one.actions and one.event not in (Verdict, Outcome):
            return f"need actions only for Verdict and Outcome, was {one!r:.80}"
        if unknown := set(one.actions) - installed().keys():
            name = min(unknown)
            return f"unknown action {name!r}{nearest(name, installed())}"
    return ""


def _signature_problem(cls: type[Any], method: str, *arguments: str, is_async: bool = False) -> str:
    function = getattr(cls, method, None)
    wanted = ", ".join(("self", *arguments))
    if not callable(function):
        return f"need a method {method}({wanted}), has none"
    if is_async and not inspect.iscoroutinefunction(function):
        return f"{method} is not async: need async def {method}({wanted})"
    if not is_async and (
        inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    ):
        return f"{method} is async: need a plain method, the kernel awaits nothing"
    try:
        inspect.signature(function).bind(object(), *arguments)
    except TypeError:
        return f"need {method}({wanted}), was {method}{inspect.signature(function)}"
    except ValueError:
        return ""
    return ""


def needs_problem(kind: Kind, needs: Any, tick_s: float) -> str:
    """Return why ``needs`` is invalid, or an empty string.

    Parameters
    ----------
    tick_s : float
        Seconds between the samples of a window.
    """
    is_list = isinstance(needs, Sequence) and not isinstance(needs, str)
    if is_list and len(needs) > MAX_NEEDS:
        return f"need at most {MAX_NEEDS} entries in .needs, was {len(needs)}"
    if not is_list or not all(isinstance(n, _NEEDS[kind]) for n in needs):
        *names, last = (need.__name__ for need in _NEEDS[kind])
        return f"need a sequence of {', '.join(names)} or {last} in .needs, was {needs!r:.80}"
    read = {need.metric for need in needs if isinstance(need, Need)}
    problems = (_need_problem(need, tick_s) or _past_problem(need, read) for need in needs)
    return next(filter(None, problems), "")


def _past_problem(need: Any, read: Collection[str]) -> str:
    if not isinstance(need, NeedPast):
        return ""
    if not isinstance(need.metrics, tuple):
        return f"NeedPast: need a tuple of metrics, was {need.metrics!r:.60}"
    without = [metric for metric in need.metrics if metric not in read]
    return f"NeedPast: need a Need of {without[0]!r:.60} beside it, was none" if without else ""


def _need_problem(need: PolicyNeed, tick_s: float) -> str:
    match need:
        case Need(metric=metric) if not isinstance(metric, str) or not metric:
            return f"need a metric's name in every Need, was {metric!r:.60}"
        case Need(metric, window_s) if not _is_within(window_s, MAX_WINDOW_S):
            return f"{metric}: need window_s in 0..{MAX_WINDOW_S:.0f}, was {window_s!r:.60}"
        case Need(metric, window_s) if window_s > MAX_SAMPLES * tick_s:
            return (
                f"{metric}: need window_s of at most {MAX_SAMPLES} ticks of {tick_s:g} s, "
                f"was {window_s:g}"
            )
        case NeedFaults(memory_s) if not _is_within(memory_s, MAX_PACE_S):
            return f"NeedFaults: need memory_s in 0..{MAX_PACE_S:g}, was {memory_s!r:.60}"
        case NeedLabels(names) if not _are_names(names):
            return f"NeedLabels: need a tuple of names, was {names!r:.60}"
        case NeedNotes(kinds) if not _are_names(kinds):
            return f"NeedNotes: need a tuple of names, was {kinds!r:.60}"
        case NeedForecast(predictor=name) if not isinstance(name, str) or not name:
            return f"need a predictor's name in every NeedForecast, was {name!r:.60}"
        case NeedForecast(name, skilled) if not isinstance(skilled, bool):
            return f"{name}: need skilled true or false, was {skilled!r:.60}"
    return ""


def _are_names(names: Any) -> bool:
    return isinstance(names, tuple) and all(isinstance(name, str) and name for name in names)


def pace_problem(predictor: Any) -> str:
    """Return why a predictor's ``horizon_s`` or ``every_s`` is invalid, or an empty string."""
    for name in ("horizon_s", "every_s"):
        value = getattr(predictor, name, None)
        if not _is_number(value) or not 0 < value <= MAX_PACE_S:
            return f"need {name} > 0 and at most {MAX_PACE_S:g}, was {value!r:.60}"
    return ""


def _is_within(seconds: Any, most_s: float) -> bool:
    return _is_number(seconds) and 0 <= seconds <= most_s


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class GarbageError(PluginError):
    """The return value of a plugin breaks its contract."""


def checked_proposal(proposal: Any) -> Proposal:
    """Return a copy of ``proposal`` in its declared types, without references to the policy."""
    if not isinstance(proposal, Proposal):
        raise GarbageError(f"need a Proposal, was {type(proposal).__name__} {shown(proposal)}")
    try:
        plain = msgspec.to_builtins(proposal, enc_hook=_plain)
        checked = msgspec.convert(plain, Proposal, dec_hook=decode_open)
        encode(checked)  # fails on lone surrogates, which cannot be recorded
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise GarbageError(
            f"need a Proposal of the declared types: {one_place(text_of(error))}"
        ) from None
    for name in ("gain_gpu_s", "cost_gpu_s", "expires_s"):
        value = getattr(checked, name)
        if not math.isfinite(value) or value < 0:
            raise GarbageError(f"need a finite {name} >= 0, was {value!r}")
    if not 0 <= checked.confidence <= 1:
        raise GarbageError(f"need a confidence in [0, 1], was {checked.confidence!r}")
    return checked


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"need plain values, was {type(value).__name__} {shown(value)}")


def proposal_problem(proposal: Any) -> str:
    """Return the first rule that ``proposal`` breaks, or an empty string."""
    try:
        checked_proposal(proposal)
    except GarbageError as error:
        return str(error)
    return ""


def checked_hazard(predictor: Predictor, view: FleetView, *, reasons: bool = True) -> Hazard:
    """Return a checked copy of the predictor's answer.

    Without ``reasons`` they are not computed, which may take longer than the forecast.
    """
    hazard: Any = predictor.forecast(view)
    if problem := pace_problem(predictor):
        raise GarbageError(problem)
    if not isinstance(hazard, Hazard):
        raise GarbageError(f"need a Hazard, was {type(hazard).__name__} {shown(hazard)}")
    probability = checked_probability(hazard, len(view))
    if not isinstance(hazard.why, Mapping):
        raise GarbageError(f"need why as a dict, was {type(hazard.why).__name__}")
    texts = hazard.why if reasons else {}
    why = {int(row): _sentence(text) for row, text in texts.items()}
    outside = [row for row in why if not 0 <= row < len(view)]
    if outside:
        raise GarbageError(f"need rows below {len(view)} in why, was {outside[0]}")
    return Hazard(probability=probability, why=why)


def checked_probability(hazard: Hazard, workers: int) -> Floats:
    """Return ``(workers,)`` float64, a checked copy; masked values become NaN."""
    probability = np.asarray(np.ma.filled(hazard.probability, np.nan))
    if probability.shape != (workers,) or probability.dtype.kind != "f":
        raise GarbageError(
            f"need float probabilities of shape ({workers},), was {probability.dtype} "
            f"{probability.shape}"
        )
    judged = probability[~np.isnan(probability)]
    if np.any((judged < 0) | (judged > 1)):
        worst = judged[np.argmax(np.abs(judged - 0.5))]
        raise GarbageError(f"need probabilities in [0, 1], was {float(worst)!r}")
    return probability.astype(np.float64)


def _sentence(text: Any) -> str:
    sentence = str(text)
    if len(sentence) > MAX_TEXT or (not sentence.isascii() and text_of(sentence) != sentence):
        raise GarbageError(
            f"need texts of at most {MAX_TEXT} characters, was {text_of(sentence):.60}"
        )
    return sentence
