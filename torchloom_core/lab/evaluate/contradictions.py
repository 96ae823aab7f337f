"""Refuse traces that contradict themselves, or that cannot be combined in one study.

A fit and an evaluation check this first.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import LeakError, TraceError
from torchloom_core.lab.learning.forecast_score import FUTURE_FEATURE
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import ACTIONS, EVENTS, TOPOLOGY, Row
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.lab.trace.validation.rules import Rules

_log = logging.getLogger(__name__)


def warn_beyond_end(bundle: Bundle) -> None:
    """Log which events are ignored because they lie after the end of the trace."""
    if bundle.beyond:
        _log.warning("%s", bundle.beyond)


def refuse_contradicting(bundle: Bundle) -> None:
    """Refuse a trace whose rows contradict themselves or each other.

    LeakError (``future_feature``) if a row is available before its event; TraceError if two rows
    share an id, or an end lies before its start: such rows are ambiguous, and the results would
    depend on the reading.
    """
    for file, dated in ((EVENTS, bundle.events()), (ACTIONS, bundle.actions())):
        for row in dated:
            if row.t_avail < row.t_event:
                raise LeakError(
                    f"{bundle.path / file}: {FUTURE_FEATURE}: need t_avail >= t_event "
                    f"{moment_text(row.t_event)} of {row.id!r}, was {moment_text(row.t_avail)}"
                )
    rules = Rules(-(2**63), 2**63)
    rows: dict[str, Iterable[Row]] = {TOPOLOGY: bundle.topology(), EVENTS: bundle.events()}
    for file, of in rows.items():
        for fault in (fault for row in of for fault in rules.faults(row)):
            raise TraceError(
                f"{bundle.path / file}: {fault}; run `torchloom trace validate` for the line"
            )


def refuse_incompatible(bundles: Sequence[Bundle]) -> None:
    """Raise TraceError if two traces are identical, or watch different kinds of components.

    Traces with the same files are identical, whatever their names: one fleet counted twice would
    look like two that agree.
    """
    for one, other in combinations(bundles, 2):
        if one.checksums == other.checksums:
            raise TraceError(
                f"{other.path}: need different traces, was identical in content to {one.path}"
            )
    first, *others = bundles
    kind = watch(first).kind
    for other in others:
        its = watch(other).kind
        if its != kind:
            raise TraceError(
                f"{other.path}: need {kind}s as watched components, as in {first.path}, was {its}s"
            )


def refuse_unmeasured(missing: Sequence[tuple[Bundle, Mapping[str, set[str]]]]) -> None:
    """Raise TraceError if a plugin requires a metric that only some of the traces have.

    Its results would differ by the missing metric, which would look like a difference of fleets.
    ``missing`` has, per trace, plugin to the required metrics that the trace lacks.
    """
    for bundle, metrics_of in missing:
        for reader, metrics in metrics_of.items():
            for other, its in missing:
                elsewhere = metrics - its.get(reader, set())
                if elsewhere:
                    raise TraceError(
                        f"{bundle.path}: need {', '.join(sorted(elsewhere))}, which {reader} reads "
                        f"and {other.path} has, was none"
                    )
