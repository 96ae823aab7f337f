"""Refuse traces that cannot be combined in one study."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch


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
