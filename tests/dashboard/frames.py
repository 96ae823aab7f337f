"""Read frames as a browser does."""

import struct

import numpy as np

HEADER = struct.Struct("<BBHIdd")


def painted(frame, before):
    """Return channel, scale and the byte of each row after a frame."""
    kind, channel, _, count, low, high = HEADER.unpack_from(frame)
    rest = frame[HEADER.size :]
    if kind == 1:
        assert len(rest) == count
        return channel, (low, high), np.frombuffer(rest, np.uint8)
    assert kind == 2
    assert len(before) == count
    bits = -(-count // 8)
    changed = np.unpackbits(np.frombuffer(rest[:bits], np.uint8), bitorder="little")[:count] == 1
    after = before.copy()
    after[changed] = np.frombuffer(rest[bits:], np.uint8)
    return channel, (low, high), after
