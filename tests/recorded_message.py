"""What a part of a trajectory has of one telemetry message."""

import pyarrow as pa

from torchloom_core.live.trajectory.columns import (
    MessageBuffer,
    MessageStream,
    decode,
    telemetry_rows,
)
from torchloom_core.wire.messages import Telemetry


def recorded(message: bytes) -> list[Telemetry]:
    """Write a message to a stream, and read that."""
    messages = MessageBuffer()
    messages.add(1, 2, message)
    stream = b"".join(map(memoryview, MessageStream().encode(messages)))
    (rows,) = telemetry_rows(pa.ipc.open_stream(stream))
    return [one.batch for one in decode(rows)]
