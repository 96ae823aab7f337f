"""The table of knobs for people: what each takes, what is wanted, and who has which value."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

import msgspec

from torchloom_core.wire.messages import KnobSpec, KnobValue
from torchloom_core.wire.operator import KnobTable

_MOST_VALUES = 8
"""Of one knob that are told apart; how many workers have another is counted."""


def knob_rows(
    table: KnobTable, values: Mapping[str, Mapping[str, KnobValue]], standbys: Container[str]
) -> list[dict[str, Any]]:
    """Return a row a knob: what it takes, what is wanted, and how many workers have which value.

    A standby is given the run's values once it joins: those of ``standbys`` are counted apart.
    """
    wanted: dict[str, dict[str, KnobValue]] = {}
    since_ns: dict[str, int] = {}
    for wish in table.desired:
        if wish.value is not None and not wish.waits:
            wanted.setdefault(wish.knob, {})[wish.worker or ""] = wish.value
            since_ns[wish.knob] = max(since_ns.get(wish.knob, 0), wish.since_ns)
    run, aside = _Counts(table.specs), _Counts(table.specs)
    for worker, own in values.items():
        (aside if worker in standbys else run).add(own)
    return [
        {
            **msgspec.to_builtins(spec),
            "fence": spec.fence,
            "wanted": wanted.get(spec.name, {}),
            "since_s": since_ns.get(spec.name, 0) / 1e9,
            "values": run.most(spec.name),
            "others": run.others(spec.name),
            "standbys": aside.most(spec.name),
            "is_tried": spec.name in table.tried,
        }
        for spec in table.specs
    ]


class _Counts:
    """How many workers have which value of which knob."""

    def __init__(self, specs: tuple[KnobSpec, ...]) -> None:
        self._floats = {spec.name for spec in specs if spec.kind == "float"}
        self._have: dict[str, Counter[str]] = {}
        self._shown: dict[str, KnobValue] = {}

    def add(self, own: Mapping[str, KnobValue]) -> None:
        for knob, told in own.items():
            is_float = knob in self._floats and isinstance(told, int)
            value = float(told) if is_float else told  # 3 and 3.0 are one
            key = msgspec.json.encode(value).decode()
            self._shown[key] = value
            self._have.setdefault(knob, Counter())[key] += 1

    def most(self, knob: str) -> list[tuple[KnobValue, int]]:
        counts = self._have.get(knob, Counter()).most_common(_MOST_VALUES)
        return [(self._shown[key], count) for key, count in counts]

    def others(self, knob: str) -> int:
        have = self._have.get(knob, Counter())
        return have.total() - sum(count for _, count in have.most_common(_MOST_VALUES))
