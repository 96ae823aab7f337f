r"""The types of all message fields: names by pattern; numbers, texts and counts by limit.

Every message, action and request uses these types, so that a decoded one can be stored, encoded
and forwarded. Patterns are anchored with ``\A`` and ``\Z``: msgspec only searches, and ``$``
would accept a newline at the end.
"""

import sys
from typing import Annotated

import msgspec

MAX_NAME = 64
MAX_METRIC_NAME = 128
MAX_METRICS = 1024
MAX_KNOBS = 256
MAX_CHOICES = 256
MAX_FIELDS = 64
MAX_SHORT_TEXT = 256
MAX_ORDER = 4096
"""Characters of a knob's value that names replica groups."""

MAX_TEXT = 2000
MAX_LONG_TEXT = 500_000
"""Stacks and the Flight Recorder's dump are sent in a note."""

MAX_WORKERS = 100_000
"""That a run may have in total: each costs a row, and a consumer on the broker."""

MAX_RANK = 2**31 - 1
MAX_COUNT = 2**53
"""Integers up to here are exact as floats."""

NAME = r"\A[A-Za-z0-9_-]{1,64}\Z"
METRIC_NAME = r"\A[A-Za-z_:][A-Za-z0-9_:.-]{0,127}\Z"
KNOB_NAME = r"\A[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z"
FIELD_NAME = r"\A[A-Za-z0-9_.:-]{1,64}\Z"

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
"""The name of a run, worker, group or node: one token of a NATS subject."""

RackName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
"""A name, or empty if the rack is unknown."""

RoleName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
"""The name of a role, or empty for every role that is meant."""

SessionName = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9_-]{1,32}(\.[a-z0-9]{1,8})?)?\Z")]
"""The name that a person entered at a web page, a dot and the page's id; or empty."""

MetricName = Annotated[str, msgspec.Meta(pattern=METRIC_NAME)]

KnobName = Annotated[str, msgspec.Meta(pattern=KNOB_NAME, max_length=MAX_NAME)]
"""Tokens separated by dots: part of a key in a NATS bucket."""

ReplicaId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SHORT_TEXT)]
"""torchft's name of one incarnation of a replica group: its name, ``:`` and a UUID."""

FieldName = Annotated[str, msgspec.Meta(pattern=FIELD_NAME)]
"""The name of a kind of note, one of its fields, or an actuator."""

LaunchId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
"""The id of one start of a job by its launcher; empty: an older Threadlet."""

Id = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,64}\Z")]
"""The id of a command, proposal or request."""

OptionalId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{0,64}\Z")]
"""An id, or empty."""

Target = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SHORT_TEXT)]
"""The target of an action. A trace may have names of any form; live, an unknown one is denied."""

ShortText = Annotated[str, msgspec.Meta(max_length=MAX_SHORT_TEXT)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
KnobText = Annotated[str, msgspec.Meta(max_length=MAX_ORDER)]
"""A knob's value: an order, or one of its choices, which are shorter."""

LongText = Annotated[str, msgspec.Meta(max_length=MAX_LONG_TEXT)]
FileText = Annotated[str, msgspec.Meta(max_length=65_536)]
"""A small file, such as credentials."""

CREDS = (
    r"\A(?![\s\S])|\A\s*-+BEGIN NATS USER JWT[^\n]*\n[^\s]+\s"
    r"[\s\S]*BEGIN USER NKEY SEED[^\n]*\n[^\s]+\s"
)
Creds = Annotated[str, msgspec.Meta(pattern=CREDS, max_length=65_536)]
"""The text of a NATS credentials file, or empty; nats-py hangs on one without all parts."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits the columns of the fleet and the trajectory."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Step = Annotated[int, msgspec.Meta(ge=-1, le=MAX_COUNT)]
"""A finished step, -1 before the first."""

QuorumId = Annotated[int, msgspec.Meta(ge=-1, le=MAX_COUNT)]
"""The id of a quorum, -1 before the first."""

Stamp = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A time in nanoseconds."""

Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
Pid = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Status = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
"""An exit code, or minus a signal's number."""

Version = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Neither infinite nor NaN, which JSON cannot represent."""

KnobValue = bool | Int64 | Finite | KnobText
KnobValues = Annotated[dict[KnobName, KnobValue], msgspec.Meta(max_length=MAX_KNOBS)]
