"""The tables ``[notify.<name>]``: where messages to people go."""

from typing import Annotated, Literal

import msgspec

from torchloom_core.config.ranges import HostAndPort, NotNegative

SECRET = r"\A((env:[A-Za-z_][A-Za-z0-9_]*|file:.+))?\Z"
Secret = Annotated[str, msgspec.Meta(pattern=SECRET)]
"""Where a secret is read: an environment variable or a file. Never the secret itself."""

Address = Annotated[str, msgspec.Meta(pattern=r"\A[^\s@<>,;]+@[^\s@<>,;]+\Z")]

Event = Literal[
    "alert",
    "failed_action",
    "fault",
    "crash_loop",
    "breaker",
    "quarantine",
    "kill_switch",
    "recording",
    "take_over",
]

EVENTS: tuple[Event, ...] = Event.__args__  # type: ignore[attr-defined]


class Notify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of every ``[notify.<name>]``: which events are sent, and how often."""

    events: tuple[Event, ...] = EVENTS
    """What is sent."""
    group_s: NotNegative = 10.0
    """Events of one cause within this time become one message, seconds."""
    repeat_s: NotNegative = 1800.0
    """Minimum time between two messages of one cause, seconds."""
    per_hour: Annotated[int, msgspec.Meta(ge=1)] = 30
    """Maximum number of messages an hour; what is over it waits, and is then one message."""


class Webhook(Notify, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[notify.<name>]`` with ``kind = "webhook"``: JSON is posted to a URL."""

    kind: Literal["webhook"]
    """The kind of channel."""
    url: Annotated[str, msgspec.Meta(pattern=r"\A((env:|file:|https?://)\S+)\Z")]
    """The URL, or "env:NAME" or "file:PATH" if it is secret."""
    token: Secret = ""
    """Where to read a bearer token: "env:NAME" or "file:PATH"; empty: none."""


class Slack(Notify, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[notify.<name>]`` with ``kind = "slack"``: an incoming webhook of Slack, or alike."""

    kind: Literal["slack"]
    """The kind of channel."""
    url: Annotated[str, msgspec.Meta(pattern=r"\A(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)\Z")]
    """Where to read its URL, which is a secret: "env:NAME" or "file:PATH"."""


class Mail(Notify, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[notify.<name>]`` with ``kind = "mail"``: mail by an SMTP server."""

    kind: Literal["mail"]
    """The kind of channel."""
    server: HostAndPort
    """Host and port of the SMTP server."""
    sender: Address
    """Address of the sender."""
    to: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1, max_length=50)]
    """Addresses of the recipients."""
    user: str = ""
    """User name for the server; empty: no login."""
    password: Secret = ""
    """Where to read the password: "env:NAME" or "file:PATH"."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """TLS after a plain start, from the start, or none."""

    def __post_init__(self) -> None:
        """Refuse half of a login, and one without TLS."""
        if bool(self.user) != bool(self.password):
            raise ValueError(f"need both user and password, was {self.user or self.password!r}")
        if self.user and self.tls == "none":
            raise ValueError("need tls with a password, was 'none'")


Channel = Webhook | Slack | Mail
KINDS: dict[str, type[Channel]] = {"webhook": Webhook, "slack": Slack, "mail": Mail}
SECRETS_OF = {"webhook": ("token",), "slack": ("url",), "mail": ("password",)}
"""The keys of each kind that only say where a secret is."""
