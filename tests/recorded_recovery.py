"""A recovery over two Weavers: a rank is lost in the epoch of one, and back in that of the next."""

from pathlib import Path

from tests.recorded_epoch import START_NS, Recorder
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.start_phases import START_PHASES, Start

LOST_NS = START_NS + 1003 * SECOND_NS
BEGAN_NS = START_NS + 1990 * SECOND_NS


def record_recovery(root: Path) -> None:
    """Record 1001 s: 1 s until the report, 986 s without a process, 9 s import, 5 s restore."""
    lost = {"run": "run", "worker": "g0-0", "incarnation": 1}
    recorder = Recorder(root, 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(Hello(**lost, group="g0", rank=0, node="node7", ts_ns=LOST_NS - SECOND_NS))
    recorder.step(Telemetry(**lost, seq=1, state="training", step=3, progress_age_s=0.1))
    recorder.step(Exit(**lost, status=-9, expected=False, step=3, ts_ns=LOST_NS))
    recorder.writer.close()
    back = lost | {"incarnation": 2}
    recorder = Recorder(root, 2)
    recorder.step(Recovered(epoch=2))
    recorder.step(
        Hello(**back, group="g0", rank=0, node="node8", ts_ns=START_NS + 2002 * SECOND_NS)
    )
    seconds = {"import": 9.0}
    for phase, more in (("restore", {}), ("", {"restore": 5.0})):
        start = Start(began_ns=BEGAN_NS, phase=phase, joined=False, seconds=seconds | more)
        recorder.step(Note(**back, kind=START_PHASES, fields=start.fields()))
    recorder.writer.close()
