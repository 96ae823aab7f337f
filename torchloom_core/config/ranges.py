"""Types of the config's values: ranges of numbers, addresses."""

from typing import Annotated

import msgspec

MOST = 1e9
"""In seconds 31 years: as nanoseconds they still fit an int64. Refuses ``inf``."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
UpToADay = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
"""A time in seconds; at least a millisecond, the resolution of a lighthouse's options."""

Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9:][A-Za-z0-9._:%-]*\Z")]
"""A name or an address, as it stands in a URL."""

HostAndPort = Annotated[str, msgspec.Meta(pattern=r"\A((\[[0-9A-Fa-f:.]+\]|[^\s:]+):\d{1,5})?\Z")]
