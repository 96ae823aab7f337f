"""Results of all portions: stored in results.json, printed as tables and plotted."""

import json
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from experiments.bench.machine import with_torch
from experiments.chaos import record
from experiments.chaos.judge import BY_US, Findings

TARGETS = ("weaver", "broker", "sidecar", "trainer", "lighthouse", "host")
_NAMES = {"weaver": "Weaver", "broker": "nats-server"}
COLOURS = {"kill": "#b5482e", "freeze": "#1f6f8b"}

_LABELS = {
    "lives of the Weaver": "incarnations of the Weaver",
    "requests that are owed an answer": "requests that require an answer",
}
Portion = dict[str, Any]


def portion_of(seed: int, findings: Findings, folder: Path) -> Portion:
    """Return one run's results as they are stored."""
    timeline = record.rows(folder / record.TIMELINE)
    begun = next((row["t"] for row in timeline if row["event"] == "begun"), 0.0)
    return {
        "seed": seed,
        "seconds": round(findings.seconds, 1),
        "explained_share": round(findings.explained_share, 3),
        "slowest_answer_s": round(findings.slowest_answer_s, 3),
        "counts": dict(sorted(findings.counts.items())),
        "of_our_making": {kind: lines for kind, lines in findings.faults.items() if lines},
        "struck": [
            [round(row["t"] - begun, 2), row["target"], row["kind"], round(row["lasts_s"], 2)]
            for row in timeline
            if row["event"] == "strike"
        ],
    }


def read(path: Path) -> list[Portion]:
    """Return the portions of an earlier command."""
    portions: list[Portion] = json.loads(path.read_text())["portions"] if path.exists() else []
    return portions


def write(path: Path, portions: Sequence[Portion]) -> None:
    """Write all portions and what they were measured on."""
    machine = {"processor": platform.machine(), **with_torch()}
    results = {"machine": machine, "total": _total(portions), "portions": list(portions)}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _total(portions: Sequence[Portion]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for portion in portions:
        total.update(portion["counts"])
        total["of our making"] += sum(map(len, portion["of_our_making"].values()))
    return dict(sorted(total.items()))


def show(portions: Sequence[Portion], console: Console) -> int:
    """Print strikes, counts, and the failures that torchLoom caused; return their number."""
    total = Counter(_total(portions))
    columns = (Column(f"{kind}s", justify="right") for kind in ("kill", "freeze"))
    struck = Table("", *columns, title="hit", title_justify="left")
    for target in TARGETS:
        counts = [str(total[f"{kind} {target}"]) for kind in ("kill", "freeze")]
        struck.add_row(_NAMES.get(target, target), *counts)
    struck.add_row("all", str(total["kills"]), str(total["freezes"]))
    console.print(struck)

    counted = Table("", Column("", justify="right"), title="counted", title_justify="left")
    kinds = {f"{kind} {target}" for kind in ("kill", "freeze") for target in TARGETS}
    for name, count in sorted(total.items()):
        if name not in kinds | {"kills", "freezes", "of our making"}:
            counted.add_row(_LABELS.get(name, name), str(count))
    console.print(counted)

    ours = Table("", Column("", justify="right"), title="caused by torchLoom", title_justify="left")
    for kind in BY_US:
        ours.add_row(kind, str(sum(len(p["of_our_making"].get(kind, ())) for p in portions)))
    console.print(ours)
    for portion in portions:
        for kind, lines in portion["of_our_making"].items():
            for line in lines:
                console.print(f"seed {portion['seed']}: {kind}: {line}", markup=False)
    return total["of our making"]


def draw(path: Path, portions: Sequence[Portion]) -> None:
    """Save a plot of the strikes over time, one panel per portion."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(9, 1 + 1.1 * len(portions)), layout="constrained")
    rows = plot.subplots(len(portions), 1, sharex=True, squeeze=False)[:, 0]
    for axes, portion in zip(rows, portions, strict=True):
        for at_s, target, kind, lasts_s in portion["struck"]:
            lane = TARGETS.index(target)
            if kind == "freeze":
                axes.barh(lane, lasts_s, 0.6, at_s, color=COLOURS[kind])
            else:
                axes.plot([at_s, at_s], [lane - 0.4, lane + 0.4], color=COLOURS[kind], lw=1)
        axes.set_yticks(range(len(TARGETS)), [_NAMES.get(target, target) for target in TARGETS])
        axes.invert_yaxis()
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"seed {portion['seed']}", loc="left", fontsize=8)
    rows[-1].set_xlabel("seconds; a stroke is a kill, a bar is a freeze")
    plot.savefig(path, dpi=130)
