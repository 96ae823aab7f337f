"""The newest backtest beside the run: the gains that ``torchloom evaluate`` expected."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.floor.errors import DashboardError
from torchloom_core.floor.files import open_regular
from torchloom_core.floor.plain_text import printable
from torchloom_core.wire.codec import UNREADABLE

_MOST_BYTES = 16 << 20
BESIDE = "*-evaluation/report.json"
"""Where `torchloom evaluate` writes its report by default."""

VERSION = 2
"""Of the reports that are read."""

LOOK_EVERY_S = 10.0

_MODE = "mode"
"""The Weaver's own key of a policy's table: in a backtest every named policy acts."""


class _Interval(msgspec.Struct, frozen=True):
    value: float
    low: float | None = None
    high: float | None = None


class _Arm(msgspec.Struct, frozen=True):
    name: str
    kind: str
    what: str = ""
    versus_without: _Interval | None = None
    speedup: _Interval | None = None
    decisions: float = 0.0
    moves: float = 0.0
    right_moves: float = 0.0


class _Study(msgspec.Struct, frozen=True):
    arms: tuple[_Arm, ...]
    seeds: tuple[int, ...] = ()


class _Plugins(msgspec.Struct, frozen=True):
    policies: dict[str, dict[str, Any]] = {}


class _Config(msgspec.Struct, frozen=True):
    arms: dict[str, _Plugins] = {}


class _Trace(msgspec.Struct, frozen=True):
    trace: dict[str, Any]
    config: _Config = _Config()
    simulation: _Study | None = None
    allreduce: _Study | None = None


class _Version(msgspec.Struct, frozen=True):
    version: int = 1


class _Report(msgspec.Struct, frozen=True):
    traces: tuple[_Trace, ...]
    torchloom: str = ""


class Backtest:
    """Finds the newest report beside the config, unless ``given``; DashboardError if it is none."""

    def __init__(
        self, given: Path | None, beside: Path, policies: Mapping[str, dict[str, Any]]
    ) -> None:
        self._given = given
        self._beside = beside
        self._policies = policies
        self._read: tuple[Path, int] | None = None
        self._shown: dict[str, Any] = {}
        if given is not None:
            _expectations(self._newest() or given, policies)

    def shown(self) -> dict[str, Any]:
        """Return what to show; empty if there is no report.

        ``path``, ``at_s`` when it was written, and ``expectations``: for each candidate and trace
        its ``arm``, ``policies``, ``gain`` as value, low and high in ``unit``, and whether they
        had the ``same`` options as in this config. Or ``trouble``: why it cannot be read.
        """
        path = None
        try:
            path = self._newest()
            if path is None:
                return {}
            written_ns = path.stat().st_mtime_ns
            if (path, written_ns) != self._read:
                shown: dict[str, Any] = {"path": printable(str(path)), "at_s": written_ns / 1e9}
                try:
                    self._shown = shown | {"expectations": _expectations(path, self._policies)}
                except DashboardError as error:
                    self._shown = shown | {"trouble": printable(str(error))}
                self._read = path, written_ns
        except OSError as error:
            text, place = printable(str(path or "")), printable(str(path or self._beside))
            return {"path": text, "trouble": f"{place}: cannot be read: {error.strerror}"}
        return self._shown

    def _newest(self) -> Path | None:
        if self._given is not None:
            return self._given / "report.json" if self._given.is_dir() else self._given
        return max(self._beside.glob(BESIDE), key=_written_ns, default=None)


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _expectations(path: Path, policies: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the expected gain of each candidate; DashboardError if it is no report."""
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DashboardError(f"{path}: need a report.json: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise DashboardError(f"{path}: need a report of at most {_MOST_BYTES:,} bytes")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise DashboardError(f"{path}: need a report of version {VERSION}, was {version}")
        report = msgspec.json.decode(data, type=_Report)
    except UNREADABLE as error:
        raise DashboardError(f"{path}: need a report of torchloom evaluate: {error}") from None
    return [
        _expectation(trace, study, arm, policies)
        for trace in report.traces
        for study in (trace.simulation, trace.allreduce)
        if study is not None
        for arm in study.arms
        if arm.kind == "candidate"
    ]


def _expectation(
    trace: _Trace, study: _Study, arm: _Arm, policies: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    plugins = trace.config.arms.get(arm.name, _Plugins()).policies
    is_goodput = study is trace.simulation
    gain = arm.versus_without if is_goodput else arm.speedup
    return {
        "arm": arm.name,
        "trace": str(trace.trace.get("name", "")),
        "policies": list(plugins),
        "gain": None if gain is None else [gain.value, gain.low, gain.high],
        "unit": "goodput" if is_goodput else "speedup",
        "seeds": len(study.seeds),
        "decisions": arm.decisions,
        "moves": arm.moves,
        "right_moves": arm.right_moves,
        "same": all(
            name in policies and _options(options) == _options(policies[name])
            for name, options in plugins.items()
        ),
    }


def _options(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != _MODE}
