"""Feed a recorded epoch to a fresh kernel and compare its decisions."""

from collections.abc import Callable
from itertools import zip_longest

import msgspec

from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.trajectory.earlier_names import decision_of
from torchloom_core.live.trajectory.reader import EpochRecord
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import Verdict
from torchloom_core.wire.events import RecordingGap
from torchloom_core.wire.messages import Telemetry


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first output that differs, both as JSON; empty if there was none."""

    seq: int
    n: int
    recorded: str
    replayed: str


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay, which ends at the end, the first difference or the first ``gap``.

    It also ends before the first input that was thinned; then ``missing`` says what is not there.

    ``inputs`` include ``telemetry``. ``outputs`` counts those that were equal bit for bit,
    ``verdicts`` the verdicts among them. For a record of an older version only decisions are
    compared.
    """

    inputs: int
    telemetry: int
    outputs: int
    verdicts: int
    difference: Difference | None = None
    gap: RecordingGap | None = None
    missing: str = ""


def replay(record: EpochRecord, make_kernel: Callable[[EpochRecord], Kernel]) -> ReplayReport:
    """Feed ``record`` to a fresh kernel and compare every output with the recorded one.

    A policy's overrun depends on the machine: ``make_kernel`` passes ``record.overruns()`` to the
    kernel, which repeats them. StateError if the files are damaged.
    """
    kernel = make_kernel(record)
    inputs = telemetry = outputs = verdicts = 0
    difference, gap, missing = None, None, ""
    for seq, ts_recv_ns, message, recorded in record.inputs():
        if any(output.startswith(b'{"type":"input_failed"') for output in recorded):
            break  # the Weaver's own code failed at this input, which ended it
        if isinstance(message, RecordingGap):
            gap = message
            break
        if seq != inputs + 1:
            missing = record.missing
            break
        replayed = kernel.step(message, ts_recv_ns)
        inputs += 1
        telemetry += isinstance(message, Telemetry)
        for n, (old, new) in enumerate(zip_longest(recorded, replayed), start=1):
            was, now = old or b"", encode(new) if new is not None else b""
            is_same = was == now or (record.is_earlier and decision_of(was) == decision_of(now))
            if not is_same:
                recorded_as, replayed_as = was.decode(), now.decode()
                difference = Difference(seq=seq, n=n, recorded=recorded_as, replayed=replayed_as)
                break
            outputs += 1
            verdicts += isinstance(new, Verdict)
        if difference is not None:
            break
    return ReplayReport(
        inputs=inputs,
        telemetry=telemetry,
        outputs=outputs,
        verdicts=verdicts,
        difference=difference,
        gap=gap,
        missing=missing,
    )
