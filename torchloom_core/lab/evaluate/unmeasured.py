"""Find required metrics of plugins that are not measured, and warn of them."""

import logging
from collections.abc import Iterable, Set

from torchloom_core.floor.suggest import closest
from torchloom_core.interface.needs import Need, PolicyNeed

_log = logging.getLogger(__name__)


def missing(needs: Iterable[PolicyNeed], measured: Set[str]) -> set[str]:
    """Return the required metrics that are not measured."""
    return {one.metric for one in needs if isinstance(one, Need) and not one.optional} - measured


def names_of(metrics: Iterable[str], measured: Iterable[str]) -> str:
    """Return the metrics, sorted and joined, with similar measured ones as a suggestion."""
    names = sorted(metrics)
    similar = dict.fromkeys(filter(None, (closest(name, measured) for name in names)))
    return ", ".join(names) + (f"; did you mean {' and '.join(similar)}?" if similar else "")


def warn_missing(reader: str, metrics: Set[str], measured: Set[str], source: str) -> None:
    """Log the metrics of a plugin that ``source``, such as ``the trace``, lacks."""
    if metrics:
        names = names_of(metrics, measured)
        _log.warning("%s reads metrics that %s lacks: %s", reader, source, names)
