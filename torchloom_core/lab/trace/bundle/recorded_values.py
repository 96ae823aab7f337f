"""Fingerprint the telemetry of a bundle, to recognise the same data under another name."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers

Recorded = tuple[tuple[str, float], ...]
"""Values by the hash of their component, metric and second, sorted."""

MAX_VALUES = 256
"""Values of a fingerprint: those with the smallest hashes, an unbiased sample."""

_FEWEST, _SHARE = 20, 0.9
"""Distinct values, and share of equal ones, above which an agreement is no coincidence."""

_Keys = NDArray[np.uint64]


def recorded_values(bundle: Bundle, until_ns: int) -> Recorded:
    """Return the fingerprint of the telemetry before a moment; () without telemetry."""
    keys, values = np.zeros(0, dtype=np.uint64), np.zeros(0)
    for key, value in _read(bundle, until_ns):
        if len(keys) == MAX_VALUES:  # hardly any key is smaller, and sorting is slow
            smaller = key < keys[-1]
            key, value = key[smaller], value[smaller]
        keys, first = np.unique(np.concatenate([keys, key]), return_index=True)
        keys = keys[:MAX_VALUES]
        values = np.concatenate([values, value])[first[:MAX_VALUES]]
    return tuple((f"{key:016x}", value) for key, value in zip(keys, values.tolist(), strict=True))


def same_values(recorded: Recorded, bundle: Bundle, until_ns: int) -> bool:
    """Return whether a bundle has the telemetry of a fingerprint.

    Nearly all values under common keys have to be equal, and to be more than a few distinct ones,
    as an idle counter has. Keys of one recording alone do not count: it may be longer, or cover
    part of the fleet.
    """
    if not recorded:
        return False
    wanted = np.array([int(key, 16) for key, _ in recorded], dtype=np.uint64)
    was = np.array([value for _, value in recorded])
    found: Floats = np.full(len(recorded), np.nan)
    for key, value in _read(bundle, until_ns):
        place = np.minimum(np.searchsorted(wanted, key), len(wanted) - 1)
        hit = (wanted[place] == key) & np.isnan(found[place])
        place, first = np.unique(place[hit], return_index=True)
        found[place] = value[hit][first]
    there = ~np.isnan(found)
    same = np.isclose(found[there], was[there], rtol=1e-5, atol=0.0)
    return len(np.unique(was[there][same])) >= _FEWEST and bool(same.mean() >= _SHARE)


def _read(bundle: Bundle, until_ns: int) -> Iterator[tuple[_Keys, Floats]]:
    """Yield the keys of the finite values, and the values, in parts of bounded size."""
    components, metrics = bundle.measured, bundle.metrics
    component, metric = _hashes(components), _hashes(metrics)
    for table in bundle.telemetry(end_ns=until_ns):
        value = numbers(table["value"])
        is_valid = numbers(table["valid"]) & np.isfinite(value)
        second = numbers(table["t_event"]) // SECOND_NS
        key = _mixed(second.astype(np.uint64) ^ metric[codes(table["metric"], metrics)])
        key = _mixed(key ^ component[codes(table["component"], components)])
        yield key[is_valid], value[is_valid]


def _hashes(names: Sequence[str]) -> _Keys:
    return np.array([_hash(name) for name in names], dtype=np.uint64)


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _mixed(key: _Keys) -> _Keys:
    """Mix the bits of a key (Steele et al., SplitMix64, 2014)."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
