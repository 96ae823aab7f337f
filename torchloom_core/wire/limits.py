r"""What may cross a wire: names by pattern; numbers, texts and counts by limit.

Every message, action and request is made of these types, so that what was decoded can be stored,
encoded and sent on. Patterns are anchored with ``\A`` and ``\Z``: msgspec only searches, and
``$`` would let a newline through at the end.
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
"""Stacks and the Flight Recorder's dump travel in a note."""

MAX_WORKERS = 100_000
"""That a run may ever have: each costs a row, and a consumer on the broker."""

MAX_RANK = 2**31 - 1
MAX_COUNT = 2**53
"""Whole numbers up to here are exact as floats, too."""

NAME = r"\A[A-Za-z0-9_-]{1,64}\Z"
METRIC_NAME = r"\A[A-Za-z_:][A-Za-z0-9_:.-]{0,127}\Z"
KNOB_NAME = r"\A[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z"
FIELD_NAME = r"\A[A-Za-z0-9_.:-]{1,64}\Z"

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
"""Of a run, worker, group or node: one token of a NATS subject."""

RackName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
"""A name, or nothing where racks are not known."""

SessionName = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9_-]{1,32}(\.[a-z0-9]{1,8})?)?\Z")]
"""Who sits at a web page, by their own word, and which page that is; or nothing."""

MetricName = Annotated[str, msgspec.Meta(pattern=METRIC_NAME)]

KnobName = Annotated[str, msgspec.Meta(pattern=KNOB_NAME, max_length=MAX_NAME)]
"""Tokens with dots between them: part of a key in a NATS bucket."""

ReplicaId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SHORT_TEXT)]
"""What torchft calls a life of a replica group: its name, ``:`` and a UUID."""

FieldName = Annotated[str, msgspec.Meta(pattern=FIELD_NAME)]
"""Of a kind of note, one of its fields, or an actuator."""

LaunchId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
"""Of one start of a job by its launcher; empty: an older Threadlet, which says none."""

Id = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,64}\Z")]
"""Of a command, proposal or request."""

OptionalId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{0,64}\Z")]
"""An id, or nothing where there is none."""

Target = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SHORT_TEXT)]
"""What an action is for. A recorded trace has names of its own kind; live, one that no worker
has is denied."""

ShortText = Annotated[str, msgspec.Meta(max_length=MAX_SHORT_TEXT)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
KnobText = Annotated[str, msgspec.Meta(max_length=MAX_ORDER)]
"""A knob's value; one that is no order is one of its choices, and shorter."""

LongText = Annotated[str, msgspec.Meta(max_length=MAX_LONG_TEXT)]
FileText = Annotated[str, msgspec.Meta(max_length=65_536)]
"""A small file, such as credentials."""

CREDS = (
    r"\A(?![\s\S])|\A\s*-+BEGIN NATS USER JWT[^\n]*\n[^\s]+\s"
    r"[\s\S]*BEGIN USER NKEY SEED[^\n]*\n[^\s]+\s"
)
Creds = Annotated[str, msgspec.Meta(pattern=CREDS, max_length=65_536)]
"""The text of a NATS credentials file, or nothing; nats-py would look for its parts for ever."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number that fits the columns in which the fleet and the trajectory keep it."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Step = Annotated[int, msgspec.Meta(ge=-1, le=MAX_COUNT)]
"""A step that was finished, -1 before the first."""

QuorumId = Annotated[int, msgspec.Meta(ge=-1, le=MAX_COUNT)]
"""Of a quorum, -1 before the first."""

Stamp = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Nanoseconds of a clock."""

Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
Pid = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Status = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
"""An exit code, or minus a signal's number."""

Version = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Neither infinite nor NaN: JSON has a word for neither."""

KnobValue = bool | Int64 | Finite | KnobText
KnobValues = Annotated[dict[KnobName, KnobValue], msgspec.Meta(max_length=MAX_KNOBS)]
