"""What a bundle measured, so that the same data are known again under another name."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.plugin.arrays import Floats
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.telemetry import codes, numbers

Recorded = tuple[tuple[str, float], ...]
"""Values of a component and metric at a second, by a print of the three, sorted."""

KEPT = 256
"""Values that tell telemetry again; of more those with the smallest prints, a fair sample."""

_FEWEST, _SHARE = 20, 0.9
"""So many different values, and so many of those at the same place, are the same by no chance."""

_Keys = NDArray[np.uint64]


def recorded_values(bundle: Bundle, until_ns: int) -> Recorded:
    """Return what tells again what was measured before a moment, () if nothing was."""
    kept, values = np.zeros(0, dtype=np.uint64), np.zeros(0)
    for key, value in _read(bundle, until_ns):
        if len(kept) == KEPT:  # next to none is smaller, and to sort takes longest
            smaller = key < kept[-1]
            key, value = key[smaller], value[smaller]
        kept, first = np.unique(np.concatenate([kept, key]), return_index=True)
        kept = kept[:KEPT]
        values = np.concatenate([values, value])[first[:KEPT]]
    return tuple((f"{key:016x}", value) for key, value in zip(kept, values.tolist(), strict=True))


def same_values(known: Recorded, bundle: Bundle, until_ns: int) -> bool:
    """Say whether a bundle measured what is known of another recording.

    Of what both have at the same place next to all has to be the same, and not the same few values
    throughout, as of a counter at rest. What only one of them has does not count: it may be longer,
    or of a part of the fleet.
    """
    if not known:
        return False
    wanted = np.array([int(key, 16) for key, _ in known], dtype=np.uint64)
    was = np.array([value for _, value in known])
    found: Floats = np.full(len(known), np.nan)
    for key, value in _read(bundle, until_ns):
        place = np.minimum(np.searchsorted(wanted, key), len(wanted) - 1)
        hit = (wanted[place] == key) & np.isnan(found[place])
        place, first = np.unique(place[hit], return_index=True)
        found[place] = value[hit][first]
    there = ~np.isnan(found)
    same = np.isclose(found[there], was[there], rtol=1e-5, atol=0.0)
    return len(np.unique(was[there][same])) >= _FEWEST and bool(same.mean() >= _SHARE)


def _read(bundle: Bundle, until_ns: int) -> Iterator[tuple[_Keys, Floats]]:
    """Yield the finite values, a bounded part at a time, and the print of each."""
    components, metrics = bundle.measured, bundle.metrics
    component, metric = _prints(components), _prints(metrics)
    for table in bundle.telemetry(end_ns=until_ns):
        value = numbers(table["value"])
        known = numbers(table["valid"]) & np.isfinite(value)
        second = numbers(table["t_event"]) // SECOND_NS
        key = _mixed(second.astype(np.uint64) ^ metric[codes(table["metric"], metrics)])
        key = _mixed(key ^ component[codes(table["component"], components)])
        yield key[known], value[known]


def _prints(names: Sequence[str]) -> _Keys:
    return np.array([_print(name) for name in names], dtype=np.uint64)


def _print(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _mixed(key: _Keys) -> _Keys:
    """Spread what differs in some bits over all of them (Steele et al., SplitMix64, 2014)."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
