"""Traces that cannot be in one study, refused in one line."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from torchloom_core.errors import TraceError
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import watch


def refuse_incompatible(bundles: Sequence[Bundle]) -> None:
    """Raise TraceError if two of the traces are the same, or one watches another kind of thing.

    The same are those with the same files, whatever their names: one fleet that is counted twice
    would look like two that agree.
    """
    for one, other in combinations(bundles, 2):
        if one.checksums == other.checksums:
            raise TraceError(
                f"{other.path}: need traces that differ, was the same by its contents as {one.path}"
            )
    first, *others = bundles
    kind = watch(first).kind
    for other in others:
        its = watch(other).kind
        if its != kind:
            raise TraceError(
                f"{other.path}: need {kind}s to be watched, as in {first.path}, was {its}s"
            )


def refuse_unmeasured(missing: Sequence[tuple[Bundle, Mapping[str, set[str]]]]) -> None:
    """Raise TraceError if a plugin cannot do without a metric that only some traces have.

    Its figures would differ by what it was shown, and nobody could tell that from fleets that
    differ.

    Parameters
    ----------
    missing : sequence of (Bundle, mapping of str to set of str)
        Of each trace, plugin to the metrics that are not known there.
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
