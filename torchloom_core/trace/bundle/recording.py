"""What a bundle recorded, so that the same data are known again under another name."""

import hashlib

from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.checksums import sha256_of


def events_digest(bundle: Bundle, until_ns: int) -> str:
    """Return the SHA-256 of what happened to whom and when, "" if nothing was known by then.

    Ids, kinds and whatever else an import makes of an event are left out, and so is what came
    later: a longer recording of the same fleet is the same up to there.
    """
    known = [event for event in bundle.events() if event.t_avail < until_ns]
    lines = sorted(f"{event.t_event} {event.component}" for event in known)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def telemetry_digest(bundle: Bundle) -> str:
    """Return the SHA-256 of the telemetry's files, "" if there are none."""
    listed = bundle.manifest.files
    sums = []
    for path in bundle.parquet_files:
        entry = listed.get(str(path.relative_to(bundle.path)))
        sums.append(entry.sha256 if entry else sha256_of(path))
    return hashlib.sha256(" ".join(sums).encode()).hexdigest() if sums else ""
