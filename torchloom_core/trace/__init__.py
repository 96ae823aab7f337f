"""Traces on disk, for Python: write a bundle, read one, see it as a predictor would.

::

    from torchloom_core.trace import Bundle, BundleWriter, Component, Event, views

A bundle is written with :class:`BundleWriter`, made up by :func:`synthesize` or
:func:`synthesize_bandwidth`, or taken from what a Weaver recorded by :func:`from_trajectory`;
:mod:`torchloom_core.trace.importers` makes bundles of what others recorded. :class:`Bundle` reads
it, :func:`validate` finds what is wrong with it, :class:`Feed` turns it into a kernel's inputs and
:func:`views` into what a predictor sees.
"""

from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import (
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
from torchloom_core.trace.bundle.writer import BundleWriter
from torchloom_core.trace.feed.feed import Feed
from torchloom_core.trace.feed.views import views
from torchloom_core.trace.feed.watched import Watched
from torchloom_core.trace.recorded.from_trajectory import from_trajectory
from torchloom_core.trace.recorded.recorded import RecordedLife, recorded_inputs, recorded_life
from torchloom_core.trace.synthetic.bandwidth import BandwidthParameters, synthesize_bandwidth
from torchloom_core.trace.synthetic.parameters import Parameters
from torchloom_core.trace.synthetic.trace import synthesize
from torchloom_core.trace.validation.validate import Findings, validate

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
    "RecordedLife",
    "Watched",
    "from_trajectory",
    "recorded_inputs",
    "recorded_life",
    "synthesize",
    "synthesize_bandwidth",
    "validate",
    "views",
]
