"""What a worker says of itself."""

import struct

from torchloom_core.wire.messages import Hello, Telemetry


def hello(worker="g0-0", incarnation=1, node="n0", state="training", **launch):
    group, _, rank = worker.rpartition("-")
    return Hello(
        run="run",
        worker=worker,
        incarnation=incarnation,
        group=group,
        rank=int(rank),
        node=node,
        rack="r0",
        state=state,
        **launch,
    )


def batch(rows, worker="g0-0", incarnation=1, step=5, state="training"):
    """Return telemetry of samples, each a dict of metrics."""
    metrics = tuple(rows[0]) if rows else ()
    values = [value for row in rows for value in row.values()]
    return Telemetry(
        run="run",
        worker=worker,
        incarnation=incarnation,
        seq=0,
        state=state,
        step=step,
        progress_age_s=0.0,
        metrics=metrics,
        ts_ns=bytes(8 * len(rows)),
        values=struct.pack(f"<{len(values)}d", *values),
    )
