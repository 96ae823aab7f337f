"""A recorded epoch is replayed into a kernel and compared bit for bit."""

from collections.abc import Sequence
from pathlib import Path

from torchloom_core.capabilities.alert import Alert
from torchloom_core.config.schema import Config
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.live.trajectory.replay import Difference, ReplayReport, replay
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.decisions import Notice, Output, Verdict
from torchloom_core.wire.events import Input, Tick
from torchloom_core.wire.messages import Hello, Telemetry

BATCH = Telemetry(
    run="demo",
    worker="g0-0",
    incarnation=1,
    seq=1,
    state="training",
    step=1,
    progress_age_s=0.5,
)


class CountingKernel:
    """Output at every tick the number of batches, plus an error."""

    def __init__(self, off_at: int = 0) -> None:
        self._batches = 0
        self._ticks = 0
        self._off_at = off_at

    def step(self, message: Telemetry | Input, ts_ns: int) -> Sequence[Output]:
        if isinstance(message, Telemetry):
            self._batches += 1
            return ()
        self._ticks += 1
        net = float(self._batches) + 2**-40 * (self._ticks == self._off_at)
        verdict = Verdict(
            proposal="p",
            policy="x",
            action=Alert(worker="g0-0", text=""),
            granted=False,
            rule="r",
            reason="",
            net_gpu_s=net,
        )
        outputs: list[Output] = [Notice(kind="count", text=str(ts_ns)), verdict]
        return outputs[: 2 - (self._off_at < 0)]


def record(root: Path) -> EpochRecord:
    writer = TrajectoryWriter(root, "demo", 1, Config(), {}, 5)
    kernel = CountingKernel()
    for ts_ns in range(1, 10):
        if ts_ns % 3:
            writer.telemetry(encode_telemetry(BATCH), ts_ns)
            kernel.step(BATCH, ts_ns)
        else:
            writer.event(Tick(), ts_ns, kernel.step(Tick(), ts_ns))
    writer.close()
    return read_epochs(root)[0]


def test_the_same_kernel_decides_the_same(tmp_path: Path) -> None:
    report = replay(record(tmp_path), lambda epoch_record: CountingKernel())
    assert report == ReplayReport(inputs=9, telemetry=6, outputs=6, verdicts=3)


def test_the_first_difference_is_shown_down_to_the_last_bit(tmp_path: Path) -> None:
    report = replay(record(tmp_path), lambda epoch_record: CountingKernel(off_at=2))
    assert report.difference is not None
    assert (report.difference.seq, report.difference.n) == (6, 2)
    assert '"net_gpu_s":4.0,' in report.difference.recorded
    assert '"net_gpu_s":4.0000000000009095,' in report.difference.replayed
    assert (report.inputs, report.verdicts) == (6, 1)


def test_an_output_that_does_not_come_is_a_difference(tmp_path: Path) -> None:
    report = replay(record(tmp_path), lambda epoch_record: CountingKernel(off_at=-1))
    assert report.difference is not None
    assert report.difference == Difference(
        seq=3, n=2, recorded=report.difference.recorded, replayed=""
    )


def test_the_real_kernel_repeats_its_decisions(tmp_path: Path) -> None:
    def make_kernel(epoch_record: EpochRecord) -> Kernel:
        return Kernel(epoch_record.config, ActivePlugins(), RecordedGuard(epoch_record.overruns()))

    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    kernel = Kernel(Config(), ActivePlugins(), RecordedGuard())
    hello = Hello(run="demo", worker="g1-0", incarnation=1, group="g1", rank=0, node="n1")
    inputs: list[Telemetry | Input] = [hello, BATCH, Tick(), Tick()]
    for ts_ns, message in enumerate(inputs, start=1):
        outputs = kernel.step(message, ts_ns)
        if isinstance(message, Telemetry):
            writer.telemetry(encode_telemetry(message), ts_ns)
        else:
            writer.event(message, ts_ns, outputs)
    writer.close()
    report = replay(read_epochs(tmp_path)[0], make_kernel)
    assert report.difference is None
    assert report.inputs == 4
    assert report.outputs > 0
