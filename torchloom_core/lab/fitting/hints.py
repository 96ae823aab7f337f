"""Find likely causes why a predictor cannot learn: clauses for its error."""

from collections.abc import Iterator, Sequence, Set

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.suggest import listed
from torchloom_core.interface.needs import PredictorNeed
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.unmeasured import missing, names_of
from torchloom_core.lab.fitting.time_split import Split
from torchloom_core.lab.trace.bundle.bundle import Bundle

_LISTED = 5
_DAY_NS = 86_400 * SECOND_NS


def hints(bundle: Bundle, task: Task, split: Split, needs: Sequence[PredictorNeed]) -> str:
    """Return clauses that each begin with a semicolon; "" without a known cause.

    Parameters
    ----------
    needs : sequence of PredictorNeed
        Those of the predictor.
    """
    unseen = missing(needs, {*bundle.metrics})
    return "".join(f"; {clause}" for clause in _clauses(bundle, task, split, unseen) if clause)


def _clauses(bundle: Bundle, task: Task, split: Split, unseen: Set[str]) -> Iterator[str]:
    if unseen:
        yield f"the trace has no {names_of(unseen, bundle.metrics)}"
    yield uncounted(bundle, task) or _away(bundle, task) or _too_late(bundle, task, split)


def uncounted(bundle: Bundle, task: Task) -> str:
    """Return why no event of a trace counts; "" if one does."""
    events = bundle.events()
    if not events:
        return "the trace has no event"
    if any(task.counts(event) for event in events):
        return ""
    kinds = sorted({event.kind for event in events})
    return (
        f"none of its {len(events)} events is fatal: set the kinds that count with --kind, such as "
        f"{listed(kinds, most=_LISTED)}, or use --task detect"
    )


def _away(bundle: Bundle, task: Task) -> str:
    """Return that all components are away during their incidents; "" if some are not."""
    counted = [event for event in bundle.events() if task.counts(event)]
    if task.kind == "forecast" or not all(event.fatal for event in counted):
        return ""
    return (
        f"all of its {len(counted)} events are fatal, so the components are away during them and "
        "there is nothing to learn from: use --task forecast"
    )


def _too_late(bundle: Bundle, task: Task, split: Split) -> str:
    """Return that no event that counts was known during training; "" if one was."""
    counted = [event for event in bundle.events() if task.counts(event)]
    shown_ns = split.calibrated_from_ns
    first_ns = min(max(event.t_event, event.t_avail) for event in counted)
    if first_ns <= shown_ns:
        return ""
    what = f"events of {' or '.join(task.kinds)}" if task.kinds else "failures"
    return (
        f"the first of its {len(counted)} {what} became known on {_when(first_ns, split)}, but "
        f"training ends on {_when(shown_ns, split)}: set --until later than day "
        f"{_day(split.until_ns, split)}"
    )


def _when(ts_ns: int, split: Split) -> str:
    return f"{moment_text(ts_ns)}, day {_day(ts_ns, split)}"


def _day(ts_ns: int, split: Split) -> str:
    return f"{(ts_ns - split.start_ns) / _DAY_NS:.4g}"
