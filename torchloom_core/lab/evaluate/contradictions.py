"""Refuse a trace that contradicts itself, and warn of events that are ignored.

A fit and an evaluation check this first.
"""

import logging
from collections.abc import Iterable

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import EVENTS, TOPOLOGY, Row
from torchloom_core.lab.trace.validation.rules import Rules

_log = logging.getLogger(__name__)


def warn_beyond_end(bundle: Bundle) -> None:
    """Log which events are ignored because they lie after the end of the trace."""
    if bundle.beyond:
        _log.warning("%s", bundle.beyond)


def refuse_contradicting(bundle: Bundle) -> None:
    """Raise TraceError if two rows share an id, or an end lies before its start.

    Such rows are ambiguous, and the results would depend on the reading.
    """
    rules = Rules(-(2**63), 2**63)
    rows: dict[str, Iterable[Row]] = {TOPOLOGY: bundle.topology(), EVENTS: bundle.events()}
    for file, of in rows.items():
        for fault in (fault for row in of for fault in rules.faults(row)):
            raise TraceError(
                f"{bundle.path / file}: {fault}; run `torchloom trace validate` for the line"
            )
