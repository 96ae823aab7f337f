"""Run commands on mutated tables, mappings and bundles: import, validate, describe, fit.

A refusal must consist of lines that each name a location, and an accepted import must be a valid
bundle.
"""

import functools
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from calls import Case, fuzz_cases, must, run_command
from found import Found, Show
from mutation import Mutator

_DAYS, _NODES = 24, 6
_START_S = 1_767_225_600
_UNTIL = "14d"
_PREDICTORS = ("fault_history", "one_rule")
_NEXT = itertools.cycle(_PREDICTORS)
_COUNT = re.compile(r"\d+ errors in all")
_BESIDE = re.compile("WARNING |warning: |.* [0-9]+%|.*: still at work")

MAPPING = """
name = "own"
[times]
unit = "s"
start = 1767225600
end = 1769299200
[events]
columns = {t_event = "when", component = "host", t_resolved = "back"}
constants = {follows = "component"}
[topology]
file = "topology.csv"
columns = {id = "host"}
constants = {kind = "node"}
[telemetry]
file = "LAYOUT.csv"
layout = "LAYOUT"
columns = {t_event = "when", component = "host"}
load_dependent = ["heat"]
"""


class Wrong(Exception):
    """A message is missing, or a user cannot act on it."""


def fuzz_traces(folder: Path, count: int, seed: int, show: Show) -> Found:
    """Mutate one file at a time, import or describe it, and restore it."""
    found, mutator = Found("traces"), _TraceMutator(seed)
    cases = [*_tables(folder), *_bundle(folder, summed=False), *_bundle(folder, summed=True)]
    fuzz_cases(found, folder, cases, mutator, count, show)
    return found


class _TraceMutator(Mutator):
    """Knows Parquet files, too."""

    def file(self, suffix: str, whole: bytes) -> bytes:
        """Return a file of its kind with something in it changed."""
        if suffix != ".parquet" or self.random.random() < 0.4:
            return super().file(suffix, whole)
        table = pq.read_table(pa.BufferReader(whole))
        name = self.random.choice(table.column_names)
        at = table.column_names.index(name)
        numbers = [0, -1, 2**63 - 1, -(2**63), 10**18, float("nan"), float("inf"), 1e308]
        rows = len(table)
        match self.random.randrange(6):
            case 0:
                table = table.remove_column(at)
            case 1:
                table = table.rename_columns(
                    [self.random.choice((other, "", "value", "x")) for other in table.column_names]
                )
            case 2:
                table = table.set_column(at, name, pa.array([self.random.choice(numbers)] * rows))
            case 3:
                table = table.set_column(at, name, pa.nulls(rows, table[name].type))
            case 4:
                texts = pc.cast(table[name], pa.string())
                table = table.set_column(at, name, texts)
            case _:
                table = table.take(self.random.sample(range(rows), rows // 2))
        out = pa.BufferOutputStream()
        pq.write_table(table, out)
        return out.getvalue().to_pybytes()


# --- tables -------------------------------------------------------------------------------------


def _tables(folder: Path) -> list[Case]:
    random = Random(0)
    nodes = [f"n{number}" for number in range(_NODES)]
    events = [(_START_S + 86_400 * day + 7_200, nodes[day % 3]) for day in range(1, _DAYS)]
    lines = [f"{at},{node},crash,{at + 3_600},4" for at, node in events]
    (folder / "events.csv").write_text("\n".join(["when,host,kind,back,slot", *lines]) + "\n")
    lines = [f"{node},r{number % 2},8" for number, node in enumerate(nodes)]
    lines += ["r0,,", "r1,,"]
    (folder / "topology.csv").write_text("\n".join(["host,parent,gpus", *lines]) + "\n")
    wide, long = ["when,host,heat,power"], ["when,host,metric,value,valid,unit"]
    for at in range(_START_S, _START_S + _DAYS * 86_400, 21_600):
        for node in nodes:
            heat, power = f"{random.uniform(40, 80):.1f}", f"{random.uniform(200, 700):.0f}"
            wide.append(f"{at},{node},{heat},{power}")
            long += [f"{at},{node},heat,{heat},true,C", f"{at},{node},power,{power},1,W"]
    cases: list[Case] = []
    for layout, rows in (("wide", wide), ("long", long)):
        (folder / f"{layout}.csv").write_text("\n".join(rows) + "\n")
        mapping = folder / f"{layout}.toml"
        mapping.write_text(MAPPING.replace("LAYOUT", layout))
        files = ("events.csv", "topology.csv", f"{layout}.csv", mapping.name, mapping.name)
        cases += _taken(folder, files, "csv", folder / "events.csv", "--map", mapping)
    return cases + _dated(folder) + _recorded(folder)


def _dated(folder: Path) -> list[Case]:
    """Return tables with times as people write them, and no mapping or hardly any."""
    plain = folder / "plain.csv"
    lines = [f"2026-01-{day:02},n{day % 3},crash,,{day}" for day in range(1, _DAYS)]
    plain.write_text("\n".join(["time,component,kind,resolved,severity", *lines]) + "\n")
    heat = [
        f"2026-01-{day:02}T06:00Z,n{node},{day}" for day in range(1, _DAYS) for node in range(3)
    ]
    (folder / "heat.csv").write_text("\n".join(["time,component,heat", *heat]) + "\n")
    mapping = folder / "dated.toml"
    mapping.write_text('[telemetry]\nfile = "heat.csv"\n')
    mapped = _taken(folder, ("plain.csv", "heat.csv", mapping.name), "csv", plain, "--map", mapping)
    return mapped + _taken(folder, ["plain.csv"], "csv", plain)


def _recorded(folder: Path) -> list[Case]:
    """Return tables as two sources of recorded data have them."""
    servers, drives = folder / "servers", folder / "drives"
    servers.mkdir()
    drives.mkdir()
    lines = [
        f"n{day % 3},{day + hours / 24:.4f},fault_{what},Hardware Failure,GPU,DBE"
        for day in range(1, _DAYS)
        for hours, what in ((1, "start"), (9, "end"))
    ]
    table = ["node_id,t,ev,Level,Class,Desc", *lines]
    (servers / "fault_events.csv").write_text("\n".join(table) + "\n")
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, _DAYS) for _ in range(_NODES)]
    scrapes = {
        "date": pa.array(days, pa.timestamp("ns")),
        "serial_number": [f"d{number % _NODES}" for number in range(len(days))],
        "model": ["m"] * len(days),
        "failure": [int(number == len(days) - 1) for number in range(len(days))],
        "smart_5_raw": [float(number % 7) for number in range(len(days))],
    }
    pq.write_table(pa.table(scrapes), drives / "q1.parquet")
    found = _taken(folder, ["servers/fault_events.csv"], "infinitehbd", servers)
    return found + _taken(folder, ["drives/q1.parquet"], "backblaze", drives)


def _taken(folder: Path, files: Sequence[str], *words: object) -> list[Case]:
    """Return the files with what imports them, once it was seen to."""
    take = functools.partial(_take, folder, tuple(map(str, words)))
    if take():
        raise Wrong(f"{words}: refused as they are")
    return [(folder / file, take) for file in files]


def _take(folder: Path, words: Sequence[str]) -> int:
    """Import tables; what comes of it is sound and can be looked at."""
    out = folder / "out.tltrace"
    shutil.rmtree(out, ignore_errors=True)
    kind, source, *rest = words
    status = _run(folder, ["trace", "import", kind, source, str(out), *rest])
    if status:
        if out.exists():
            raise Wrong(f"refused, and {out.name} is there")
        return status
    if _run(folder, ["trace", "validate", str(out), "--json"]):
        raise Wrong("what was taken makes a bundle that is not sound")
    _look(folder, out)
    return status


# --- bundles ------------------------------------------------------------------------------------


def _bundle(folder: Path, *, summed: bool) -> list[Case]:
    """Return the files of a bundle, of which one that is not summed is looked into."""
    bundle = folder / ("summed.tltrace" if summed else "made.tltrace")
    must(["trace", "import", "csv", str(folder / "events.csv"), str(bundle), "--map",
          str(folder / "long.toml")])  # fmt: skip
    manifest = bundle / "manifest.json"
    if not summed:
        table = {**json.loads(manifest.read_bytes()), "files": {}}
        manifest.write_bytes(msgspec.json.encode(table))
    check = functools.partial(_check, folder, bundle)
    check()
    files = [manifest] if summed else sorted(path for path in bundle.rglob("*") if path.is_file())
    return [(path, check) for path in files] + (_scores(folder, bundle) if summed else [])


def _scores(folder: Path, bundle: Path) -> list[Case]:
    """Return a table of forecasts that were made elsewhere."""
    lines = [
        f"{at * 10**9},n{node},{node / 10},{int(node > 3)}"
        for at in range(_START_S, _START_S + _DAYS * 86_400, 43_200)
        for node in range(_NODES)
    ]
    scores = folder / "scores.csv"
    scores.write_text("\n".join(["t,component,score,alarm", *lines]) + "\n")
    words = ["evaluate", str(bundle), "--mode", "replay", "--scores", f"mine={scores}"]
    words += ["--out", str(folder / "report")]
    score = functools.partial(_run, folder, words)
    if score():
        raise Wrong("scores were refused as they are")
    return [(scores, score)]


def _check(folder: Path, bundle: Path) -> None:
    _run(folder, ["trace", "validate", str(bundle), "--json"])
    _look(folder, bundle)


def _look(folder: Path, bundle: Path) -> None:
    _run(folder, ["trace", "describe", str(bundle), "--horizon", "36h"])
    settings = ["--tick-s", "21600", "--every-s", "43200", "--option", "horizon_s=172800"]
    predictor = next(_NEXT)
    model = folder / f"{predictor}.tlmodel"
    words = [str(bundle), "--predictor", predictor, "--until", _UNTIL, "--out", str(model)]
    _run(folder, ["fit", *words, "--force", *settings])


def _run(folder: Path, arguments: list[str]) -> int:
    """Run a command, and raise Wrong if its output is of no use to a person."""
    status, out, words = run_command(arguments)
    verb = " ".join(arguments[:2])
    lines = [line for line in words.splitlines() if not _BESIDE.match(line)]
    if arguments[1] == "validate":
        lines = json.loads(out)["faults"]
    elif status and not (lines and lines[0].startswith("torchloom: ")):
        raise Wrong(f"{verb}: status {status} and no word: {words[:200]!r}")
    for line in lines:
        places = (str(folder), "--", *(f"torchloom: {name}: " for name in _PREDICTORS))
        if not (_COUNT.fullmatch(line) or any(place in line for place in places)):
            raise Wrong(f"{verb}: no place: {line[:200]!r}")
        if "\n" in line:
            raise Wrong(f"{verb}: more than a line: {line[:200]!r}")
    return status
