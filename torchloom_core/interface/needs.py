"""The data that a policy or predictor declares to read; nothing else is stored for it."""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

DAY_S = 86_400.0
"""How long faults are stored even if no plugin needs them, seconds."""


class Need(msgspec.Struct, frozen=True):
    """A metric that a plugin reads.

    Attributes
    ----------
    metric : str
        Its name, as the trainer or a collector reports it.
    window_s : float
        How far back, seconds; 0: only the latest value.
    optional : bool
        Whether the plugin works without it: an evaluation does not warn if it is missing.

    Examples
    --------
    >>> from torchloom_core.plugin import Need
    >>> needs = (Need("loss"), Need("step_time_s", window_s=60.0))
    >>> [(need.metric, need.window_s) for need in needs]
    [('loss', 0.0), ('step_time_s', 60.0)]
    """

    metric: str
    window_s: float = 0.0
    optional: bool = False


class NeedFaults(msgspec.Struct, frozen=True):
    """Faults older than the last day, which is always available.

    Attributes
    ----------
    memory_s : float
        How far back, seconds.

    Examples
    --------
    >>> from torchloom_core.plugin import NeedFaults
    >>> NeedFaults(30 * 86_400.0)
    NeedFaults(memory_s=2592000.0)
    """

    memory_s: float


class NeedPast(msgspec.Struct, frozen=True):
    """How long a value has been unchanged; in a trace, since the beginning of the trace.

    Attributes
    ----------
    metrics : tuple of str
        The metrics whose ``moved_s`` and ``changed_s`` are read; each also needs a ``Need``.

    Examples
    --------
    >>> from torchloom_core.plugin import Need, NeedPast
    >>> needs = (Need("reallocated_sectors"), NeedPast(("reallocated_sectors",)))
    >>> needs[1]
    NeedPast(metrics=('reallocated_sectors',))
    """

    metrics: tuple[str, ...] = ()


class NeedLabels(msgspec.Struct, frozen=True):
    """Fixed properties of a component, such as its model, that a plugin reads.

    A predictor's view has only these; a policy's view has all labels.

    Attributes
    ----------
    names : tuple of str
        The keys of ``view.labels`` that are read.

    Examples
    --------
    >>> from torchloom_core.plugin import NeedLabels
    >>> NeedLabels(("model", "capacity_bytes"))
    NeedLabels(names=('model', 'capacity_bytes'))
    """

    names: tuple[str, ...]


class NeedNotes(msgspec.Struct, frozen=True):
    """Notes that a policy reads; the newest of each kind is stored for each worker.

    Attributes
    ----------
    kinds : tuple of str
        Kinds from ``loom.note(kind)``, or those that a Threadlet sends, such as ``dump``.

    Examples
    --------
    >>> from torchloom_core.plugin import NeedNotes
    >>> NeedNotes(("dump",))
    NeedNotes(kinds=('dump',))
    """

    kinds: tuple[str, ...]


class NeedForecast(msgspec.Struct, frozen=True):
    """A predictor whose forecasts a policy reads; the config has to activate it.

    Attributes
    ----------
    predictor : str
        Its name.
    skilled : bool
        Whether the policy needs a model with the verdict "useful": with another model it is in
        dry run. A predictor without a model is always accepted.

    Examples
    --------
    >>> from torchloom_core.plugin import Need, NeedForecast
    >>> needs = (Need("unsaved_work_s"), NeedForecast("trend", skilled=True))
    >>> needs[1]
    NeedForecast(predictor='trend', skilled=True)
    """

    predictor: str
    skilled: bool = False


class NeedOffers(msgspec.Struct, frozen=True):
    """That the policy decides on planned changes of programs that are split over workers.

    While such a policy acts on a role, its rendezvous makes no planned change by itself.

    Examples
    --------
    >>> from torchloom_core.plugin import NeedOffers
    >>> NeedOffers()
    NeedOffers()
    """


PredictorNeed: TypeAlias = Need | NeedFaults | NeedPast | NeedLabels
PolicyNeed: TypeAlias = (
    Need | NeedFaults | NeedPast | NeedLabels | NeedNotes | NeedForecast | NeedOffers
)


def windows_s(needs: Iterable[PolicyNeed]) -> dict[str, float]:
    """Return the longest window of each metric, seconds, in order of first mention."""
    windows: dict[str, float] = {}
    for need in needs:
        if isinstance(need, Need):
            windows[need.metric] = max(windows.get(need.metric, 0.0), need.window_s)
    return windows


def fault_memory_s(needs: Iterable[PolicyNeed]) -> float:
    """Return how long faults have to be stored, seconds."""
    return max([DAY_S, *(need.memory_s for need in needs if isinstance(need, NeedFaults))])


def metrics_with_past(needs: Iterable[PolicyNeed]) -> set[str]:
    """Return the metrics whose times of change are stored."""
    return {metric for need in needs if isinstance(need, NeedPast) for metric in need.metrics}


def labels_read(needs: Iterable[PolicyNeed]) -> tuple[str, ...]:
    """Return the labels that a plugin reads, each once."""
    named = (name for need in needs if isinstance(need, NeedLabels) for name in need.names)
    return tuple(dict.fromkeys(named))


def notes_read(needs: Iterable[PolicyNeed]) -> frozenset[str]:
    """Return the kinds of notes that a plugin reads."""
    return frozenset(kind for need in needs if isinstance(need, NeedNotes) for kind in need.kinds)


def forecasts_read(needs: Iterable[PolicyNeed]) -> list[NeedForecast]:
    """Return the needs for forecasts."""
    return [need for need in needs if isinstance(need, NeedForecast)]
