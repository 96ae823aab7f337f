"""Fingerprint the telemetry and the events of a bundle, to recognise them under another name."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
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
    component, metric = (
        np.array([int.from_bytes(_hash(name)) for name in names], dtype=np.uint64)
        for names in (components, metrics)
    )
    for table in bundle.telemetry(end_ns=until_ns):
        value = numbers(table["value"])
        is_valid = numbers(table["valid"]) & np.isfinite(value)
        second = numbers(table["t_event"]) // SECOND_NS
        key = _mixed(second.astype(np.uint64) ^ metric[codes(table["metric"], metrics)])
        key = _mixed(key ^ component[codes(table["component"], components)])
        yield key[is_valid], value[is_valid]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _mixed(key: _Keys) -> _Keys:
    """Mix the bits of a key (Steele et al., SplitMix64, 2014)."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


MAX_PRINTS = 256
"""Hashes of a fingerprint: the smallest, an unbiased sample of the events."""

_FEWEST_PRINTS = 3
"""Common hashes above which an agreement is no coincidence."""
_GRAIN_NS = 60 * SECOND_NS
"""Resolution of times: an export to a table may drop seconds."""


def prints(events: Iterable[Event]) -> tuple[str, ...]:
    """Return sorted hashes of components and times of events, ``MAX_PRINTS`` at most.

    Ids, kinds and other columns are left out, as imports may differ in them.
    """
    return tuple(sorted(_all_prints(events))[:MAX_PRINTS])


def same_recording(first: tuple[str, ...], events: Iterable[Event], due: Iterable[Event]) -> bool:
    """Return whether events belong to the recording with the fingerprint ``first``.

    Half of ``first`` has to be among the events, or half of the events due among ``first``: one
    recording may be longer, cover part of the fleet, or have more events. ``due`` are those of the
    events that ``first`` would have, were the recordings the same.
    """
    last = first[-1] if len(first) == MAX_PRINTS else None
    due_here = {one for one in _all_prints(due) if last is None or one <= last}
    shared = len({*first} & _all_prints(events))
    fewer = min(len(first), len(due_here) or len(first))
    return 2 * shared >= fewer and shared >= min(_FEWEST_PRINTS, len(first)) > 0


def _all_prints(events: Iterable[Event]) -> set[str]:
    return {_hash(f"{event.t_event // _GRAIN_NS} {event.component}").hex() for event in events}
