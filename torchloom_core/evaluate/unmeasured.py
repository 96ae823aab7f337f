"""Say which metrics a plugin cannot do without and nobody measures: there it sees nothing."""

import logging
from collections.abc import Iterable, Set

from torchloom_core.plugin.needs import Need, PolicyNeed
from torchloom_core.suggest import closest

_log = logging.getLogger(__name__)


def missing(needs: Iterable[PolicyNeed], known: Set[str]) -> set[str]:
    """Return the metrics that are needed, and are not among the known ones."""
    return {one.metric for one in needs if isinstance(one, Need) and not one.optional} - known


def names_of(metrics: Iterable[str], known: Iterable[str]) -> str:
    """Return metrics in a row, sorted, and which known ones may be meant."""
    names = sorted(metrics)
    meant = dict.fromkeys(filter(None, (closest(name, known) for name in names)))
    return ", ".join(names) + (f"; did you mean {' and '.join(meant)}?" if meant else "")


def say_unseen(reader: str, metrics: Set[str], known: Set[str], lacking: str) -> None:
    """Log it, if there are any.

    Parameters
    ----------
    lacking : str
        Who has them not, as in ``the trace has not``.
    """
    if metrics:
        names = names_of(metrics, known)
        _log.warning("%s reads what %s: it sees no %s", reader, lacking, names)
