"""Refuse a command whose operation this process cannot read: no installed package has it."""

import time

import msgspec

from torchloom_core.wire.commands import Ack
from torchloom_core.wire.limits import MAX_TEXT, Count, Id, Name
from torchloom_threadlet.cleaning import text


class _Addressed(msgspec.Struct, tag="command"):
    """A command without its operation."""

    id: Id
    run: Name
    worker: Name
    incarnation: Count
    epoch: Count


_json = msgspec.json.Decoder(_Addressed)
_msgpack = msgspec.msgpack.Decoder(_Addressed)


def rejection(data: bytes, why: str) -> Ack | None:
    """Return the ack for a command in JSON or msgpack; None if ``data`` is no command."""
    decode = _json.decode if data[:1] == b"{" else _msgpack.decode
    try:
        command = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Ack(
        command=command.id,
        run=command.run,
        worker=command.worker,
        incarnation=command.incarnation,
        epoch=command.epoch,
        status="rejected",
        detail=text(why, MAX_TEXT),
        ts_ns=time.time_ns(),
    )
