"""Write inputs until killed; print, after each flush, the number of the last one in it."""

import sys
from pathlib import Path

import numpy as np

from torchloom_core.config.schema import Config
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Telemetry

writer = TrajectoryWriter(Path(sys.argv[1]), "demo", 1, Config(), {}, 5, part_bytes=1 << 20)
seq = 0
while True:
    for _ in range(50):
        seq += 1
        batch = Telemetry(
            run="demo",
            worker=f"g{seq % 5}-0",
            incarnation=1,
            seq=seq,
            state="training",
            step=seq,
            progress_age_s=0.5,
            metrics=("loss", f"m{seq % 100}"),
            ts_ns=np.arange(100, dtype="<i8").tobytes(),
            values=np.full(200, seq, "<f8").tobytes(),
        )
        writer.telemetry(encode_telemetry(batch), seq)
        seq += 1
        writer.event(Tick(), seq, [Notice(kind="note", text=str(seq) * 100)] * (seq % 5))
    writer.flush()
    sys.stdout.write(f"{seq}\n")
    sys.stdout.flush()
