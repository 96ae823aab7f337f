"""Measurements of the links between workers, as matrices for the view."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, frozen
from torchloom_core.wire.links import Link

LinksOf = Mapping[str, Mapping[str, Link]]
"""Sender to receiver to the last measurement; the mappings are never modified."""


class Links(NamedTuple):
    """Measurements of the links among some rows of a view.

    Each is ``(rows, rows)``, ``[i, j]`` from row ``i`` to row ``j``; NaN if not measured, and on
    the diagonal.

    Attributes
    ----------
    bytes_per_s : (rows, rows) float64
        The bandwidth in that direction.
    latency_s : (rows, rows) float64
        Half of a round trip.
    age_s : (rows, rows) float64
        The age of the measurement.
    spread : (rows, rows) float64
        The standard deviation of ``bytes_per_s`` over its value; NaN also after a single
        measurement.

    Examples
    --------
    >>> from torchloom_core.plugin import Links
    >>> from torchloom_core.testing import LinkSample, view_of
    >>> sample = LinkSample(bytes_per_s=25e6, latency_s=0.0004, age_s=30.0)
    >>> view = view_of(workers=3, links={("w0", "w2"): sample})
    >>> links: Links = view.links([0, 2])
    >>> links.bytes_per_s
    array([[      nan, 25000000.],
           [      nan,       nan]])
    >>> float(links.age_s[0, 1])
    30.0
    """

    bytes_per_s: Floats
    latency_s: Floats
    age_s: Floats
    spread: Floats


def links_among(links_of: LinksOf, workers: Sequence[str], now_ns: int) -> Links:
    """Return the measurements of the links among ``workers``, each named once."""
    column = {worker: index for index, worker in enumerate(workers)}
    measured = [
        (row, column[receiver], link.ts_ns, *_figures(link))
        for row, sender in enumerate(workers)
        for receiver, link in links_of.get(sender, {}).items()
        if receiver in column
    ]
    links = np.full((len(Links._fields), len(workers), len(workers)), np.nan)
    if measured:
        rows, to, ts_ns, *figures = zip(*measured, strict=True)
        ages_s = (now_ns - np.array(ts_ns)) / SECOND_NS
        bytes_per_s, latency_s, spread = map(np.array, figures)
        links[:, rows, to] = bytes_per_s, latency_s, ages_s, spread
    return Links(*frozen(links))


def _figures(link: Link) -> tuple[float, float, float]:
    measured = link.measured
    spread = np.nan if measured.spread is None else measured.spread
    return measured.bytes_per_s, measured.latency_s, spread
