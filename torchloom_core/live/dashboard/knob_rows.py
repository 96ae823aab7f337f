"""The table of knobs for people: ranges, desired values, and how many workers have which value."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

import msgspec

from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operator import KnobTable

_MOST_VALUES = 8
"""Values of one knob that are listed; workers with other values are counted together."""


def knob_rows(
    table: KnobTable, values: Mapping[str, Mapping[str, KnobValue]], standbys: Container[str]
) -> list[dict[str, Any]]:
    """Return a row for each knob; ``standbys``, which take the values later, count separately."""
    desired: dict[str, dict[str, KnobValue]] = {}
    since_ns: dict[str, int] = {}
    for one in table.desired:
        if one.value is not None and not one.waits:
            desired.setdefault(one.knob, {})[one.worker or ""] = one.value
            since_ns[one.knob] = max(since_ns.get(one.knob, 0), one.since_ns)
    run, waiting = _Counts(table.specs), _Counts(table.specs)
    for worker, own in values.items():
        (waiting if worker in standbys else run).add(own)
    return [
        {
            **msgspec.to_builtins(spec),
            "fence": spec.fence,
            "desired": desired.get(spec.name, {}),
            "since_s": since_ns.get(spec.name, 0) / 1e9,
            "values": run.most(spec.name),
            "others": run.others(spec.name),
            "standbys": waiting.most(spec.name),
            "has_preview": spec.name in table.tried,
        }
        for spec in table.specs
    ]


class _Counts:
    """Counts workers by knob and value."""

    def __init__(self, specs: tuple[KnobSpec, ...]) -> None:
        self._floats = {spec.name for spec in specs if spec.kind == "float"}
        self._have: dict[str, Counter[str]] = {}
        self._shown: dict[str, KnobValue] = {}

    def add(self, own: Mapping[str, KnobValue]) -> None:
        for knob, reported in own.items():
            is_float = knob in self._floats and isinstance(reported, int)
            value = float(reported) if is_float else reported  # 3 and 3.0 are one
            key = msgspec.json.encode(value).decode()
            self._shown[key] = value
            self._have.setdefault(knob, Counter())[key] += 1

    def most(self, knob: str) -> list[tuple[KnobValue, int]]:
        counts = self._have.get(knob, Counter()).most_common(_MOST_VALUES)
        return [(self._shown[key], count) for key, count in counts]

    def others(self, knob: str) -> int:
        have = self._have.get(knob, Counter())
        return have.total() - sum(count for _, count in have.most_common(_MOST_VALUES))
