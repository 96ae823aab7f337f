"""The names of NATS subjects, streams and buckets.

=================================  ========  ====================================================
subject                            encoding  content
=================================  ========  ====================================================
``tl.telemetry.<run>.<w>.<i>``     msgpack   :class:`~torchloom_core.wire.messages.Telemetry`
``tl.evt.<run>.<w>.<i>``           JSON      ``Hello``, ``Exit``, ``Note``, in ``TL_REPORT_<run>``
``tl.bulk.<run>.<w>.<i>``          JSON      an event above 32 KiB, in stream ``TL_BULK_<run>``
``tl.cmd.<run>.<w>.<i>``           JSON      ``Command``
``tl.ack.<run>.<w>.<i>``           JSON      ``Ack``, in stream ``TL_REPORT_<run>``
``tl.roll.<run>``                  JSON      ``RollCall``
``tl.pause.<run>``                  JSON      ``PauseState``
``tl.ctl.<run>.<person>.<verb>``   JSON      a person's request to the Weaver, with a reply
``tl.out.<run>.<kind>``            JSON      the Weaver's inputs and outputs, as they happen
``tl.join.<run>``                  JSON      a new worker requests credentials
``tl.record.<run>.<epoch>``        bytes     a piece of a trajectory file, in ``TL_RECORD_<run>``
``tl.steer.<run>``                 JSON      ``Steer``: from the Weaver to the lighthouse
``tl.lighthouse.<run>``            JSON      ``LighthouseView``
``$KV.TL_<run>.<key>``             JSON      the Weaver's own state, and every knob's desired value
=================================  ========  ====================================================

``<w>.<i>`` is ``<worker>.<incarnation>``: one process of one worker.
"""

import re
from collections.abc import Callable

DEFAULT_PERSON = "operator"
"""The person's name in a request without one."""

_NOT_TOKEN = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_LONGEST_NAME}}}")

NAME_RULE = f"1 to {_LONGEST_NAME} of A-Z a-z 0-9 _ -"
"""The rule for the name of a worker or a person."""


def is_name(text: str) -> bool:
    """Return whether ``text`` may be the name of a worker or of a person."""
    return _NAME.fullmatch(text) is not None


def as_name(text: str) -> str:
    """Return ``text`` as a valid name; it may be empty or have any characters.

    Examples
    --------
    >>> as_name("Ann Lee"), as_name("")
    ('Ann_Lee', 'operator')
    """
    return token(text)[:_LONGEST_NAME] if text else DEFAULT_PERSON


def token(name: str) -> str:
    """Return ``name`` as one subject token: anything but ``A-Z a-z 0-9 _ -`` becomes ``_``.

    Raises
    ------
    ValueError
        If ``name`` is empty.

    Examples
    --------
    >>> token("node 7.rack*2")
    'node_7_rack_2'
    """
    if not name:
        raise ValueError("need a name of at least one character, was empty")
    return _NOT_TOKEN.sub("_", name)


def _of_worker(kind: str) -> Callable[..., str]:
    def subject(run: str, worker: str = "*", incarnation: int | str = "*") -> str:
        """Return the subject of this kind of message of a worker's incarnation."""
        return f"tl.{kind}.{run}.{worker}.{incarnation}"

    return subject


def _of_run(kind: str) -> Callable[[str], str]:
    def subject(run: str) -> str:
        """Return the subject of this kind of message of a run."""
        return f"tl.{kind}.{run}"

    return subject


telemetry, event, bulk, command, ack = map(_of_worker, ("telemetry", "evt", "bulk", "cmd", "ack"))
roll_call, pause_state, join, steer, lighthouse = map(
    _of_run, ("roll", "pause", "join", "steer", "lighthouse")
)


def control(run: str, person: str = "*", verb: str = "*") -> str:
    """Return the subject of a person's request to the Weaver; a verb may have several tokens."""
    return f"tl.ctl.{run}.{person}.{verb}"


def person_and_verb(subject: str) -> tuple[str, str]:
    """Return person and verb of a subject of :func:`control`; of any other ``""`` and itself."""
    tokens = subject.split(".", 4)
    is_request = len(tokens) > 4 and tokens[:2] == ["tl", "ctl"]
    return (tokens[3], tokens[4]) if is_request else ("", subject)


def worker_of(subject: str) -> str:
    """Return the worker of a subject with which one sends: telemetry, event, bulk or ack."""
    tokens = subject.split(".", 4)
    return tokens[3] if len(tokens) > 3 else ""


def out(run: str, kind: str = ">") -> str:
    """Return the subject of the Weaver's inputs and outputs."""
    return f"tl.out.{run}.{kind}"


def report_stream(run: str) -> str:
    """Return the name of the JetStream stream of acks and events."""
    return f"TL_REPORT_{run}"


def bulk_stream(run: str) -> str:
    """Return the name of the JetStream stream of large events."""
    return f"TL_BULK_{run}"


def record(run: str, epoch: str) -> str:
    """Return the subject of the pieces of an epoch's trajectory files."""
    return f"tl.record.{run}.{epoch}"


def record_stream(run: str) -> str:
    """Return the name of the JetStream stream of trajectory files for standby Weavers."""
    return f"TL_RECORD_{run}"


def bucket(run: str) -> str:
    """Return the name of the run's key-value bucket."""
    return f"TL_{run}"


def inbox_prefix(run: str, worker: str, incarnation: int | str) -> str:
    """Return the prefix of a worker's reply subjects, which no other incarnation may read."""
    return f"_INBOX_{run}_{worker}_{incarnation}"


def lighthouse_inbox(run: str) -> str:
    """Return the prefix of the reply subjects of the run's lighthouse."""
    return f"_INBOX_LIGHTHOUSE_{run}"


def join_inbox(run: str) -> str:
    """Return the prefix of the subjects on which a joiner is answered."""
    return f"_INBOX_JOIN_{run}"
