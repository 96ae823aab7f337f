"""The part of torchft's lighthouse protocol that has to be decoded.

A member is stored and sent as the bytes that its Manager encoded, so that fields of a newer torchft
pass through. ``bytes`` and an embedded message have the same encoding, so the descriptors below
have ``bytes`` where torchft's ``.proto`` has a member.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from torchloom_core.floor.errors import MessageError
from torchloom_core.live.lighthouse.membership import Member, Quorum
from torchloom_core.wire.limits import MAX_SHORT_TEXT
from torchloom_core.wire.steering import name_of_replica

SERVICE = "torchft.LighthouseService"

_MAX_MEMBER_BYTES = 1 << 20
_Field = descriptor_pb2.FieldDescriptorProto

_FIELDS = {
    "LighthouseHeartbeatRequest": (("replica_id", 1, _Field.TYPE_STRING, False),),
    "LighthouseQuorumRequest": (("requester", 1, _Field.TYPE_BYTES, False),),
    "QuorumMember": (
        ("replica_id", 1, _Field.TYPE_STRING, False),
        ("step", 4, _Field.TYPE_INT64, False),
        ("shrink_only", 6, _Field.TYPE_BOOL, False),
        ("commit_failures", 8, _Field.TYPE_INT64, False),
    ),
    "Quorum": (
        ("quorum_id", 1, _Field.TYPE_INT64, False),
        ("participants", 2, _Field.TYPE_BYTES, True),
        ("created", 3, _Field.TYPE_BYTES, False),
    ),
    "LighthouseQuorumResponse": (("quorum", 1, _Field.TYPE_BYTES, False),),
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="torchloom/lighthouse.proto", package="torchloom.lighthouse", syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{file.package}.{name}") for name in _FIELDS}
    return {name: message_factory.GetMessageClass(found[name]) for name in _FIELDS}


MESSAGES = _classes()
"""Classes of messages by torchft's name for them."""


def decode_heartbeat(data: bytes) -> str:
    """Return the replica id in a heartbeat; MessageError if it is malformed."""
    return _checked(_parse("LighthouseHeartbeatRequest", data).replica_id)


def decode_request(data: bytes) -> Member:
    """Return the group's request in a quorum call; MessageError if it is malformed."""
    return _member(_parse("LighthouseQuorumRequest", data).requester)


def decode_quorum(data: bytes) -> Quorum:
    """Return the quorum in an answer; MessageError if it is malformed."""
    quorum = _parse("Quorum", _parse("LighthouseQuorumResponse", data).quorum)
    members = tuple(_member(raw) for raw in quorum.participants)
    return Quorum(quorum.quorum_id, members, frozenset(m.replica_id for m in members))


def _member(raw: bytes) -> Member:
    if len(raw) > _MAX_MEMBER_BYTES:
        raise MessageError(f"quorum request: need at most {_MAX_MEMBER_BYTES} B, was {len(raw)}")
    member = _parse("QuorumMember", raw)
    return Member(
        raw=raw,
        replica_id=_checked(member.replica_id),
        step=member.step,
        shrink_only=member.shrink_only,
        commit_failures=member.commit_failures,
    )


def reply(quorum: Quorum) -> bytes:
    """Return the answer to all members of a quorum."""
    members = b"".join(_part(member.raw) for member in quorum.members)
    head = _encoded("Quorum", quorum_id=quorum.quorum_id)
    return _encoded("LighthouseQuorumResponse", quorum=head + members + _created())


def ordered_replies(quorum: Quorum, order: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each member's replica id, and its answer with ranks by ``order``, names of replicas.

    A Manager sorts members by replica id and finds its own: all but the receiver are renamed so
    that the sort gives the order. Each member is encoded three times, and the answers are joined
    from these parts.
    """
    place = {name: at for at, name in enumerate(order)}

    def key(member: Member) -> tuple[int, str]:
        return place.get(name_of_replica(member.replica_id), len(place)), member.replica_id

    members = sorted(quorum.members, key=key)
    before = [_part(_renamed(member, f"!{at:06d}")) for at, member in enumerate(members)]
    after = [_part(_renamed(member, f"~{at:06d}")) for at, member in enumerate(members)]
    head, tail = _encoded("Quorum", quorum_id=quorum.quorum_id), _created()
    earlier, later = b"", b"".join(after)
    for at, member in enumerate(members):
        later = later[len(after[at]) :]
        body = b"".join((head, earlier, _part(member.raw), later, tail))
        yield member.replica_id, _encoded("LighthouseQuorumResponse", quorum=body)
        earlier += before[at]


def _renamed(member: Member, replica_id: str) -> bytes:
    # In protobuf the last of equal fields counts.
    return member.raw + _encoded("QuorumMember", replica_id=replica_id)


def _part(member: bytes) -> bytes:
    return _encoded("Quorum", participants=[member])


def _created() -> bytes:
    created = Timestamp()
    created.FromNanoseconds(time.time_ns())
    return _encoded("Quorum", created=created.SerializeToString())


def _encoded(name: str, **fields: Any) -> bytes:
    return bytes(MESSAGES[name](**fields).SerializeToString())


def _parse(name: str, data: bytes) -> Any:
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError as error:
        raise MessageError(f"{name}: {error}") from None


def _checked(replica_id: str) -> str:
    if 0 < len(replica_id) <= MAX_SHORT_TEXT and replica_id.isprintable():
        return replica_id
    rule = f"need a replica id of 1 to {MAX_SHORT_TEXT} printable characters"
    raise MessageError(f"{rule}, was {replica_id[:40]!r} of {len(replica_id)}")
