"""Who may say and hear what on the embedded broker, and what passes between its accounts.

There are three accounts beside the system's: the run's, which is the Weaver's alone (streams
and bucket lie there), the workers', and the people's. Accounts keep apart what subject
permissions cannot: a publisher may name any reply subject, and in one account the answer would
land there, be it a key of the bucket or another's control verb. Between the accounts only what
is listed here passes, and an answer goes back to the account that asked.

================  =====================================  =======================================
identity          may publish                            may subscribe
================  =====================================  =======================================
Weaver            everything in the run's account        everything in the run's account
person NAME       ``tl.ctl.<run>.NAME.>``, ``$SRV.*``,   what is said on the run, ``_INBOX.>``
                  reads of the key-value bucket
worker NAME,      its own telemetry, events, acks;       ``tl.roll.<run>``, ``tl.hold.<run>``,
one life of it    pulls and acknowledges its own         its own inbox
                  commands
joiner            ``tl.join.<run>``                      ``_INBOX_JOIN_<run>.>``
lighthouse        ``tl.lighthouse.<run>``                ``tl.steer.<run>``, ``tl.roll.<run>``,
                                                         its own inbox
================  =====================================  =======================================

What an answer may still reach is what others of the same account subscribe to: the roll among
workers, the ears of people. Whoever listens there believes only what it can decode.
"""

from typing import NamedTuple

from torchloom_core.wire import subjects

OWN_NAME = "{{name()}}"
"""What a nats-server replaces by the name in a user's JWT, in the rights of a signing key."""

OWN_INCARNATION = "{{tag(life)}}"
"""The same of the user's tag ``life:<incarnation>``; whoever has none gets no such right."""

SERVICES = ">"
"""The one export by which the run's account serves the others.

It is one for all that may be asked, since the server drops what would pass the same export a
second time: an answer whose reply subject is itself a question (another's verb, event or ack)
goes nowhere. What may be asked is in the imports.
"""


class Rights(NamedTuple):
    """The subjects that an identity may publish and those it may subscribe to.

    ``subscriptions`` is how many of these a connection may hold at once, each of which costs the
    server memory; -1 is any number.
    """

    publish: list[str]
    subscribe: list[str]
    subscriptions: int


WEAVER = Rights([">"], [">"], -1)

_OF_WORKER = 64
_OF_JOINER = 8
_OF_PERSON = 256
"""Subscriptions of a connection. A sidecar holds four, a joiner one, ``torchloom`` two; somebody
with a client of their own may listen to many workers one by one."""


def worker_rights(
    run: str, worker: str = OWN_NAME, incarnation: int | str = OWN_INCARNATION
) -> Rights:
    """Return what a worker may do in one life: nobody takes its credentials back after it."""
    life = worker, incarnation
    own_commands = f"{subjects.command_stream(run)}.{subjects.command_consumer(*life)}"
    publish = [
        subjects.telemetry(run, *life),
        subjects.event(run, *life),
        subjects.bulk(run, *life),
        subjects.ack(run, *life),
        f"$JS.API.CONSUMER.MSG.NEXT.{own_commands}",
        f"$JS.ACK.{own_commands}.>",
    ]
    heard = [*streams_to_workers(run), f"{subjects.inbox_prefix(run, *life)}.>"]
    return Rights(publish, heard, _OF_WORKER)


def joiner_rights(run: str) -> Rights:
    """Return what somebody may do who holds the run's join file."""
    return Rights([subjects.join(run)], [f"{subjects.join_inbox(run)}.>"], _OF_JOINER)


def lighthouse_rights(run: str) -> Rights:
    """Return what the run's lighthouse may do: say what it sees, and hear what is advised."""
    called = subjects.roll_call(run)
    heard = [*streams_to_lighthouse(run), called, f"{subjects.lighthouse_inbox(run)}.>"]
    return Rights([subjects.lighthouse(run)], heard, _OF_JOINER)


def person_rights(run: str, name: str = OWN_NAME) -> Rights:
    """Return what a person may do: ``torchloom``, or a plain ``nats req``, ``sub``, ``kv get``."""
    publish = [subjects.control(run, name, ">"), *_read_by_people(run)]
    publish.append(bucket_info_alias(run))  # a server looks at what a subject is mapped to
    by_weaver, by_workers = streams_to_people(run)
    return Rights(publish, [*by_weaver, *by_workers, "_INBOX.>"], _OF_PERSON)


def services_for_workers(run: str) -> list[str]:
    """Return the services of the run's account that the workers' account imports."""
    stream = subjects.command_stream(run)
    return [
        subjects.ack(run),
        subjects.event(run),
        subjects.bulk(run),
        subjects.join(run),
        f"$JS.ACK.{stream}.*.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
    ]


def services_for_people(run: str) -> list[str]:
    """Return the services of the run's account that the people's account imports."""
    return [subjects.control(run, "*", ">"), *_read_by_people(run)]


def streams_to_weaver(run: str) -> list[str]:
    """Return the streams of the workers' account that the run's account imports."""
    return [subjects.telemetry(run), subjects.lighthouse(run)]


def streams_to_workers(run: str) -> list[str]:
    """Return the streams of the run's account that the workers' account imports."""
    return [subjects.roll_call(run), subjects.hold(run)]


def streams_to_lighthouse(run: str) -> list[str]:
    """Return the streams of the run's account that the lighthouse, among the workers, hears."""
    return [subjects.steer(run)]


def streams_to_people(run: str) -> tuple[list[str], list[str]]:
    """Return the streams that the people's account imports: of the run's, of the workers'.

    They are all that the two accounts export: people hear what the Weaver and the workers hear.
    What workers ask of the run's account is no stream there: a server lets no service's
    message through to a third account.
    """
    told = [*streams_to_workers(run), *streams_to_lighthouse(run)]
    by_workers = [subjects.event(run), subjects.bulk(run), subjects.ack(run)]
    return [subjects.command(run), *told, subjects.out(run)], [*streams_to_weaver(run), *by_workers]


def bucket_info(run: str) -> str:
    """Return the question about the bucket with which every key-value client begins.

    In an account without streams of its own JetStream answers it, too, and says that it is
    off: there it has to be mapped to :func:`bucket_info_alias`, and imported as that.
    """
    return f"$JS.API.STREAM.INFO.{_stream_of_bucket(run)}"


def bucket_info_alias(run: str) -> str:
    """Return what :func:`bucket_info` is called in the people's account."""
    return f"tl.bucket.{run}"


def _read_by_people(run: str) -> list[str]:
    found = [f"$SRV.{verb}{end}" for verb in ("PING", "INFO", "STATS") for end in ("", ".>")]
    return [*found, f"$JS.API.DIRECT.GET.{_stream_of_bucket(run)}.>"]


def _stream_of_bucket(run: str) -> str:
    return f"KV_{subjects.bucket(run)}"
