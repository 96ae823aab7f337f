"""Permissions on the embedded broker, and the subjects that pass between its accounts.

There are three accounts beside the system's: the run's, which is the Weaver's alone (with the
streams and the bucket), the workers', and the people's. Subject permissions alone do not suffice:
a publisher may name any reply subject, and within one account the answer would go there, such as
to a key of the bucket or to another's control verb. Between accounts only the subjects listed here
pass, and an answer goes back to the account of the request.

================  =====================================  =======================================
identity          may publish                            may subscribe
================  =====================================  =======================================
Weaver            everything in the run's account        everything in the run's account
person NAME       ``tl.ctl.<run>.NAME.<verb>`` for the   all messages of the run, ``_INBOX.>``
                  verbs of the role, ``$SRV.*``, reads
                  of the key-value bucket
worker NAME,      its own telemetry, events, acks        its own commands, ``tl.roll.<run>``,
one incarnation                                          ``tl.pause.<run>``, its own inbox
joiner            ``tl.join.<run>``                      ``_INBOX_JOIN_<run>.>``
lighthouse        ``tl.lighthouse.<run>``                ``tl.steer.<run>``, ``tl.roll.<run>``,
                                                         its own inbox
================  =====================================  =======================================

Within an account, an answer may still reach the subscriptions of others: commands and roll calls
among workers, and inboxes of people. Subscribers there drop messages that they cannot decode.
"""

from typing import NamedTuple

from torchloom_core.wire import subjects
from torchloom_core.wire.access import VERBS_OF, PersonRole

OWN_NAME = "{{name()}}"
"""Template in a signing key's permissions that nats-server replaces by the user's name."""

OWN_INCARNATION = "{{tag(life)}}"
"""The same for the user's tag ``life:<incarnation>``; a user without it gets no permission."""

SERVICES = ">"
"""The export by which the run's account serves the others.

It is one for all services, since the server drops what would pass the same export a second time:
an answer whose reply subject is itself a service (another's verb, event or ack) is dropped. The
imports list the services.
"""


FIND_SERVER = "$SYS.REQ.SERVER.PING.IDZ"
CLOSE_CONNECTION = "$SYS.REQ.SERVER.*.KICK"
SERVER_REQUESTS = (FIND_SERVER, CLOSE_CONNECTION)
"""Services of the system's account that the run's account imports; the ``*`` is a server's id."""


class Rights(NamedTuple):
    """What an identity may publish and subscribe to; at most so many subscriptions, -1: any."""

    publish: list[str]
    subscribe: list[str]
    subscriptions: int


WEAVER = Rights([">"], [">"], -1)

_OF_WORKER = 64
_OF_JOINER = 8
_OF_PERSON = 256
"""Subscriptions of a connection. A sidecar has four, a joiner one, ``torchloom`` two; a person's
own client may subscribe to many workers one by one."""


def worker_rights(
    run: str, worker: str = OWN_NAME, incarnation: int | str = OWN_INCARNATION
) -> Rights:
    """Return the permissions of one incarnation, whose credentials are never revoked."""
    process = worker, incarnation
    publish = [
        subjects.telemetry(run, *process),
        subjects.event(run, *process),
        subjects.bulk(run, *process),
        subjects.ack(run, *process),
    ]
    subscribe = [*streams_to_workers(run, *process), f"{subjects.inbox_prefix(run, *process)}.>"]
    return Rights(publish, subscribe, _OF_WORKER)


def joiner_rights(run: str) -> Rights:
    """Return the permissions that the run's join file gives."""
    return Rights([subjects.join(run)], [f"{subjects.join_inbox(run)}.>"], _OF_JOINER)


def lighthouse_rights(run: str) -> Rights:
    """Return the permissions of the run's lighthouse: publish views, receive steering."""
    called = subjects.roll_call(run)
    subscribe = [*streams_to_lighthouse(run), called, f"{subjects.lighthouse_inbox(run)}.>"]
    return Rights([subjects.lighthouse(run)], subscribe, _OF_JOINER)


def person_rights(run: str, role: PersonRole, name: str = OWN_NAME) -> Rights:
    """Return a person's permissions: for ``torchloom`` and ``nats req``, ``sub``, ``kv get``."""
    verbs = (subjects.control(run, name, verb) for verb in sorted(VERBS_OF[role]))
    publish = [*verbs, *_read_by_people(run)]
    publish.append(bucket_info_alias(run))  # a server looks at what a subject is mapped to
    by_weaver, by_workers = streams_to_people(run)
    return Rights(publish, [*by_weaver, *by_workers, "_INBOX.>"], _OF_PERSON)


def services_for_workers(run: str) -> list[str]:
    """Return the services of the run's account that the workers' account imports, but joining.

    The server describes the sender of a join request to the Weaver, as all joiners are one user.
    """
    return [subjects.ack(run), subjects.event(run), subjects.bulk(run)]


def services_for_people(run: str) -> list[str]:
    """Return the services of the run's account that the people's account imports."""
    return [subjects.control(run, "*", ">"), *_read_by_people(run)]


def streams_to_weaver(run: str) -> list[str]:
    """Return the streams of the workers' account that the run's account imports."""
    return [subjects.telemetry(run), subjects.lighthouse(run)]


def streams_to_workers(run: str, worker: str = "*", incarnation: int | str = "*") -> list[str]:
    """Return the streams of the run's account to a worker, or those that its account imports."""
    own = subjects.command(run, worker, incarnation)
    return [own, subjects.roll_call(run), subjects.pause_state(run)]


def streams_to_lighthouse(run: str) -> list[str]:
    """Return the streams of the run's account for the lighthouse, in the workers' account."""
    return [subjects.steer(run)]


def streams_to_people(run: str) -> tuple[list[str], list[str]]:
    """Return the streams that the people's account imports, by exporter: the run's, the workers'.

    They are all streams of the two accounts: people receive what the Weaver and the workers do.
    Requests of workers to the run's account are no streams: a server passes no service's message
    to a third account.
    """
    by_workers = [subjects.event(run), subjects.bulk(run), subjects.ack(run)]
    to_others = [*streams_to_workers(run), *streams_to_lighthouse(run)]
    by_weaver = [*to_others, subjects.out(run)]
    return by_weaver, [*streams_to_weaver(run), *by_workers]


def bucket_info(run: str) -> str:
    """Return the subject of the bucket query with which every key-value client begins.

    In an account without streams JetStream answers it that it is off: there the subject has to be
    mapped to :func:`bucket_info_alias`, and imported as that.
    """
    return f"$JS.API.STREAM.INFO.{_stream_of_bucket(run)}"


def bucket_info_alias(run: str) -> str:
    """Return the name of :func:`bucket_info` in the people's account."""
    return f"tl.bucket.{run}"


def _read_by_people(run: str) -> list[str]:
    found = [f"$SRV.{verb}{end}" for verb in ("PING", "INFO", "STATS") for end in ("", ".>")]
    return [*found, f"$JS.API.DIRECT.GET.{_stream_of_bucket(run)}.>"]


def _stream_of_bucket(run: str) -> str:
    return f"KV_{subjects.bucket(run)}"
