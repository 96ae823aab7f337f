"""A hostile worker: enrols with ``join.json``, and writes one kind of message as fast as it can.

``python -m experiments.hostile_worker.flood JOIN_JSON KIND`` prints ``began`` once it has
credentials. When the server closes its connection it makes another; it ends when the server refuses
it, or it is killed.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import RawCredentials

from experiments.many_workers.thin_client import connect
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode, encode_telemetry
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.messages import Hello, JoinReply, JoinRequest, Note, Telemetry

WORKER, INCARNATION = f"evil{os.getpid()}-0", 1
KINDS = ("telemetry", "notes", "acks", "hellos", "junk", "joins")
_AT_ONCE = 1 << 18


async def main(join: dict[str, str], kind: str) -> None:
    """Enrol and write for ever."""
    run, url = join["run"], join["url"]
    if kind == "joins":
        jwt, seed = _parts(join["creds"])
    else:
        jwt, seed = await _enrolled(url, run, join["creds"])
    data, port = _messages(run, kind), int(url.rpartition(":")[2])
    for number in itertools.count():
        client = await connect(port, "127.0.0.1", jwt, seed, WORKER, lambda message: None, 10.0)
        if not number:
            print("began", flush=True)
        while not client.over.done():
            if client.waiting_bytes <= _AT_ONCE:
                client.write(data)
            await asyncio.sleep(0.001 if client.waiting_bytes > _AT_ONCE else 0)


async def _enrolled(url: str, run: str, creds: str) -> tuple[str, str]:
    seed = nats_jwt.new_seed("user")
    request = JoinRequest(
        run=run, worker=WORKER, incarnation=INCARNATION, public_key=nats_jwt.public_key(seed)
    )
    inbox = subjects.join_inbox(run)
    client = await nats.connect(url, user_credentials=RawCredentials(creds), inbox_prefix=inbox)
    reply = await client.request(subjects.join(run), encode(request), timeout=10)
    await client.close()
    return decode_json(JoinReply, reply.data, "reply").jwt, seed


def _parts(creds: str) -> tuple[str, str]:
    lines = [line for line in creds.splitlines() if line and not line.startswith("---")]
    return lines[0], lines[1]


def _messages(run: str, kind: str) -> bytes:
    """Return some hundred messages in the protocol's form."""
    one: dict[str, Any] = {"run": run, "worker": WORKER, "incarnation": INCARNATION}
    own = run, WORKER, INCARNATION
    match kind:
        case "telemetry":
            batch = Telemetry(**one, seq=1, state="training", step=1, progress_age_s=0.0)
            subject, data = subjects.telemetry(*own), encode_telemetry(batch)
        case "notes":
            subject, data = subjects.event(*own), encode(Note(**one, kind="x"))
        case "acks":
            ack = Ack(**one, command="c1", epoch=1, status="delivered", ts_ns=1)
            subject, data = subjects.ack(*own), encode(ack)
        case "hellos":
            hello = Hello(**one, group="evil", rank=0, node="n")
            subject, data = subjects.event(*own), encode(hello)
        case "junk":
            subject, data = subjects.telemetry(*own), b"\xff" * 30_000
        case _:
            data = encode(JoinRequest(**one, public_key="U"))
            subject = f"{subjects.join(run)} {subjects.join_inbox(run)}.x"
    message = b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data)
    return message * max(1, 20_000 // len(data))


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
