"""The tables of what others see of a run: metrics for Prometheus."""

from typing import Annotated, Literal

import msgspec

from torchloom_core.config.ranges import HostAndPort

FAILED_STEPS = "failed_steps_total"
"""The steps that a worker's process did not commit so far, as its adapter reports them."""

HttpUrl = Annotated[str, msgspec.Meta(pattern=r"\A(https?://[^\s/@]+(/\S*)?)?\Z")]


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[metrics]``: the Weaver's metrics for Prometheus, served if this table is present."""

    address: HostAndPort = "127.0.0.1:29513"
    series: Literal["run", "group", "worker"] = "run"
    broker: HttpUrl = ""


class Tracing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[tracing]``: OpenTelemetry traces of proposals, exported if this table is present."""

    endpoint: Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[^\s/@]+(/\S*)?\Z")] = (
        "http://127.0.0.1:4318/v1/traces"
    )
