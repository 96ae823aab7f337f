"""Every field of every message is mutated: what comes out is a message or one MessageError."""

from contextlib import suppress

import pytest

from experiments.fuzz import templates
from experiments.fuzz.mutation import EVIL, Mutator, as_json, as_msgpack, changed, fields_of
from tests.recorded_message import recorded
from torchloom_core.floor.errors import MessageError
from torchloom_core.live.transport import lease, owner
from torchloom_core.live.weaver import access_sharing
from torchloom_core.wire import codec
from torchloom_core.wire.actions import Action
from torchloom_core.wire.messages import JoinFile, JoinReply, JoinRequest, PauseState, RollCall
from torchloom_core.wire.operator import KnobSet, KnobUnset
from torchloom_core.wire.steering import LighthouseView
from torchloom_threadlet import ipc

SEED = 1
ROUNDS = 150


def to_json(decode):
    """Return a check that what was decoded can be put on file and sent on."""
    return lambda data: codec.encode(decode(data))


def to_columns(data):
    batch = codec.decode_telemetry(data)
    assert recorded(data) == [batch]
    codec.encode_telemetry(batch)


def body_of(cls):
    return to_json(lambda data: codec.decode_json(cls, data, "body"))


CASES = [
    ("telemetry", templates.telemetry("w-0"), as_msgpack, to_columns),
    *(
        (f"event {n}", event, as_json, to_json(codec.decode_event))
        for n, event in enumerate(templates.events("w-0")[1:])
    ),
    ("ack", templates.ack("w-0"), as_json, to_json(codec.decode_ack)),
    ("command", templates.command("w-0"), as_json, to_json(codec.decode_command)),
    ("join request", templates.join_request("w-0", "U"), as_json, body_of(JoinRequest)),
    *(
        (type(message).__name__, templates.plain(message), as_json, body_of(type(message)))
        for message in (
            RollCall(run="fuzz", epoch=1),
            JoinReply(jwt="eyJ", error="no"),
            PauseState(run="fuzz", epoch=1, verdict="p1", over="p2"),
            JoinFile(url="nats://127.0.0.1:1", run="fuzz"),
        )
    ),
    ("lighthouse's view", templates.lighthouse_view(), as_json, body_of(LighthouseView)),
    ("lease", {"holder": "a", "lease_s": 1.0}, as_json, lease._decoded),
    ("owner", templates.owner(), as_json, owner._decoded),
    ("access", {"people": [], "revoked": {"people": {"U": 1}}}, as_json, access_sharing._decoded),
    ("knob set", {"knob": "x", "value": 2.5, "worker": "g"}, as_json, body_of(KnobSet)),
    ("knob unset", {"knob": "x", "worker": "g"}, as_json, body_of(KnobUnset)),
    *(
        (f"propose {n}", body["action"], as_json, body_of(Action))
        for n, (verb, body) in enumerate(templates.bodies())
        if verb == "propose"
    ),
    *(
        (f"frame to the sidecar {n}", frame, as_msgpack, lambda d: ipc.pack(ipc.for_sidecar(d)))
        for n, frame in enumerate(templates.to_sidecar("w-0"))
    ),
    *(
        (f"frame to the link {n}", frame, as_msgpack, lambda d: ipc.pack(ipc.for_link(d)))
        for n, frame in enumerate(templates.to_link("w-0"))
    ),
]


@pytest.mark.parametrize(
    ("template", "pack", "use"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_mutated_message_is_a_message_or_a_message_error(template, pack, use):
    use(pack(template))
    for path in fields_of(template):
        for evil in EVIL:
            with suppress(MessageError):
                use(pack(changed(template, path, evil)))
    mutator = Mutator(SEED)
    for _ in range(ROUNDS):
        with suppress(MessageError):
            use(mutator.message(template, pack))
