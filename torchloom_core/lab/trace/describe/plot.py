"""Draw the faults of a trace bundle; ``torchloom trace describe --plot`` calls it."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import refuse_picture
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.feed.watched import Watched, watch

_DAY_NS = 86_400 * SECOND_NS
_KINDS_SHOWN = 8
_OTHER = "other"
_OTHER_COLOUR = "0.6"


def draw_faults(bundle: Bundle, path: Path) -> None:
    """Draw fatal faults over time, one row per component, and below them their count.

    Rows are in the order of the watched components, which is by name. The same bundle gives the
    same file. TraceError if it is neither ``.png`` nor ``.svg``, or cannot be written.
    """
    refuse_picture(path, TraceError)
    fatal = [event for event in bundle.events() if event.fatal]
    with mpl.rc_context({"svg.hashsalt": "torchloom"}):
        figure = _figure(bundle, fatal)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else {})
        except OSError as error:
            raise TraceError(f"{path}: cannot be written: {error.strerror}") from None


def _figure(bundle: Bundle, fatal: Sequence[Event]) -> Figure:
    watched, manifest = watch(bundle), bundle.manifest
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    days = (manifest.end_ns - manifest.start_ns) / _DAY_NS
    for kind, colour, events in _by_kind(fatal):
        when, rows = _points(events, watched, manifest.start_ns)
        above.scatter(when, rows, s=9, color=colour, label=f"{kind} ({len(events)})")
    above.set(ylabel=f"{watched.kind}, sorted by name", ylim=(-1, len(watched.ids)), xlim=(0, days))
    title = f"{manifest.name}: {len(fatal)} fatal faults, {len(watched.ids)} of kind {watched.kind}"
    above.set_title(title + (", synthetic" if manifest.synthetic else ""), loc="left")
    if fatal:
        above.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    when_all = [(event.t_event - manifest.start_ns) / _DAY_NS for event in fatal]
    below.step([0, *when_all, days], [*range(len(fatal) + 1), len(fatal)], where="post")
    below.set(xlabel="days", ylabel="faults so far", ylim=(0, None))
    return figure


def _by_kind(fatal: Sequence[Event]) -> list[tuple[str, str, list[Event]]]:
    """Return the most frequent kinds with a colour each, and all others as one kind."""
    events_of: dict[str, list[Event]] = {}
    for event in fatal:
        events_of.setdefault(event.kind, []).append(event)
    kinds = sorted(events_of, key=lambda kind: (-len(events_of[kind]), kind))
    shown = [(kind, f"C{at}", events_of[kind]) for at, kind in enumerate(kinds[:_KINDS_SHOWN])]
    if rest := [event for kind in kinds[_KINDS_SHOWN:] for event in events_of[kind]]:
        shown.append((_OTHER, _OTHER_COLOUR, rest))
    return shown


def _points(
    events: Sequence[Event], watched: Watched, start_ns: int
) -> tuple[list[float], list[int]]:
    points = [
        ((event.t_event - start_ns) / _DAY_NS, row)
        for event in events
        for row in watched.rows_of(event.component)
    ]
    return [when for when, _ in points], [row for _, row in points]
