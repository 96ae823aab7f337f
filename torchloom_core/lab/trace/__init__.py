"""Traces on disk: write a bundle, read one, and get the views that a predictor would get.

::

    from torchloom_core.lab.trace import Bundle, BundleWriter, Component, Event, views

:class:`BundleWriter` writes a bundle, :func:`synthesize` and :func:`synthesize_bandwidth` generate
one, :func:`from_trajectory` makes one of a Weaver's trajectory, and
:mod:`torchloom_core.lab.trace.importers` imports data sets and CSV files. :class:`Bundle` reads a
bundle, :func:`validate` checks it, :class:`Feed` turns it into a kernel's inputs and :func:`views`
into a predictor's.
"""

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import (
    ACTIONS,
    EVENTS,
    JOBS,
    PLACEMENT,
    TOPOLOGY,
    ActionTaken,
    Component,
    Event,
    Exposure,
    Follows,
    Job,
    Manifest,
    Placement,
)
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.feed.feed import Feed, views
from torchloom_core.lab.trace.feed.watched import Watched
from torchloom_core.lab.trace.recorded.recorded import (
    RecordedIncarnation,
    from_trajectory,
    recorded_incarnation,
    recorded_inputs,
)
from torchloom_core.lab.trace.synthetic.parameters import Parameters
from torchloom_core.lab.trace.synthetic.trace import (
    BandwidthParameters,
    synthesize,
    synthesize_bandwidth,
)
from torchloom_core.lab.trace.validation.validate import Findings, validate

__all__ = [
    "ACTIONS",
    "EVENTS",
    "JOBS",
    "PLACEMENT",
    "TOPOLOGY",
    "ActionTaken",
    "BandwidthParameters",
    "Bundle",
    "BundleWriter",
    "Component",
    "Event",
    "Exposure",
    "Feed",
    "Findings",
    "Follows",
    "Job",
    "Manifest",
    "Parameters",
    "Placement",
    "RecordedIncarnation",
    "TraceError",
    "Watched",
    "from_trajectory",
    "recorded_incarnation",
    "recorded_inputs",
    "synthesize",
    "synthesize_bandwidth",
    "validate",
    "views",
]
