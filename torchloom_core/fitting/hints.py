"""Say what may keep a predictor from learning: clauses for its refusal."""

from collections.abc import Iterator, Sequence, Set

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.unmeasured import missing, names_of
from torchloom_core.fitting.time_split import Split
from torchloom_core.plugin.needs import PredictorNeed
from torchloom_core.suggest import listed
from torchloom_core.trace.bundle.bundle import Bundle

_LISTED = 5
_DAY_NS = 86_400 * SECOND_NS


def hints(bundle: Bundle, task: Task, split: Split, needs: Sequence[PredictorNeed]) -> str:
    """Return clauses that each begin with a semicolon; "" where nothing is known.

    Parameters
    ----------
    needs : sequence of PredictorNeed
        The predictor's.
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
        f"none of its {len(events)} events is fatal: --kind names what counts, such as "
        f"{listed(kinds, most=_LISTED)}, and --task detect takes all that goes on"
    )


def _away(bundle: Bundle, task: Task) -> str:
    """Return that nobody is there to learn from while an incident goes on; "" if some are."""
    counted = [event for event in bundle.events() if task.counts(event)]
    if task.kind == "forecast" or not all(event.fatal for event in counted):
        return ""
    return (
        f"all of its {len(counted)} events that go on are fatal, and who is away meanwhile is "
        "nothing to learn from: --task forecast tells that they come"
    )


def _too_late(bundle: Bundle, task: Task, split: Split) -> str:
    """Return that no event that counts was known in time to learn from; "" if one was."""
    counted = [event for event in bundle.events() if task.counts(event)]
    shown_ns = split.calibrated_from_ns
    first_ns = min(max(event.t_event, event.t_avail) for event in counted)
    if first_ns <= shown_ns:
        return ""
    what = f"events of {' or '.join(task.kinds)}" if task.kinds else "failures"
    return (
        f"the first of its {len(counted)} {what} was known on {_when(first_ns, split)}, and it "
        f"learns from what was known by {_when(shown_ns, split)}: give a later --until than day "
        f"{_day(split.until_ns, split)}"
    )


def _when(ts_ns: int, split: Split) -> str:
    return f"{moment_text(ts_ns)}, day {_day(ts_ns, split)}"


def _day(ts_ns: int, split: Split) -> str:
    return f"{(ts_ns - split.start_ns) / _DAY_NS:.4g}"
