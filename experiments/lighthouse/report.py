"""Tables, plots, and requirements."""

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from experiments.lighthouse.stalls import DETECTED_S, FREEZE, JOIN, LEAVE

Results = dict[str, Any]

LONGEST_LEAVE_S = 0.25
LONGEST_KILL_S = 0.35
FREED_S = 0.3
"""From the detection of a hang until the others train again."""

LONGEST_TAKEOVER_S = 2.0
MOST_CPU = 0.25
MOST_MB = 150
_OURS = "torchLoom"


def machine() -> dict[str, Any]:
    """Return the machine and the versions."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torchft": version("torchft-nightly"),
    }


def show(results: Results, console: Console) -> None:
    """Print a table of each trial that there is."""
    for name, table in _TABLES.items():
        if name in results:
            console.print(table(results[name]))


def _stalls(found: list[Results]) -> Table:
    table = _table("stalls of the survivors, s", "", "strike", "stall", "failed steps", "runs")
    for (strike, arm), of in _by(found, "strike", "arm").items():
        failed = [stall["failed"] for stall in of]
        text = spread([stall["stall_s"] for stall in of])
        table.add_row(arm, strike, text, f"{min(failed)} to {max(failed)}", str(len(of)))
    return table


def _restarts(found: list[Results]) -> Table:
    columns = ("kills", "stall, s", "failed steps", "trained with fewer", "stood still")
    table = _table("the lighthouse killed and started again", "", "scene", *columns)
    for result in found:
        for (scene,), of in _by(result["restarts"], "scene").items():
            table.add_row(
                result["arm"],
                scene,
                str(len(of)),
                spread([restart["stall_s"] for restart in of]),
                str(sum(restart["failed"] for restart in of)),
                str(sum(restart["short"] for restart in of)),
                str(sum(restart["stood_still"] for restart in of)),
            )
        table.add_row(
            result["arm"],
            f"ids back {result['ids_back']}; weights unequal {result['unequal']} of "
            f"{result['compared']}",
        )
    return table


def _takeovers(found: list[float]) -> Table:
    table = _table("a standby takes over", "until all train again, s", "runs")
    table.add_row(spread(found), str(len(found)))
    return table


def _scale(found: list[Results]) -> Table:
    table = _table("scale", "", "groups", "share of a core", "memory, MB", "a quorum round, s")
    for load in found:
        rounds = spread(load["rounds_s"]) if load["rounds_s"] else "not within 120"
        cpu, rss = f"{load['cpu']:.1%}", f"{load['rss_mb']:.0f}"
        table.add_row(load["arm"], str(load["groups"]), cpu, rss, rounds)
    return table


def _counts(title: str) -> Any:
    def table(found: Results) -> Table:
        made = _table(title, *(name.replace("_", " ") for name in found))
        made.add_row(*(f"{v:.0f}" if isinstance(v, float) else str(v) for v in found.values()))
        return made

    return table


_TABLES = {
    "stalls": _stalls,
    "restarts": _restarts,
    "takeovers": _takeovers,
    "scale": _scale,
    "histories": _counts("the same histories on both"),
    "fuzz": _counts("messages that no Manager sends"),
}


def broken(results: Results) -> list[str]:
    """Return a sentence for each requirement that is not met."""
    found = []
    for (strike, arm), of in _by(results.get("stalls", ()), "strike", "arm").items():
        stalls, failed = [s["stall_s"] for s in of], max(s["failed"] for s in of)
        if not arm.startswith(_OURS):
            continue
        longest, limit_s = statistics.median(stalls), LONGEST_KILL_S
        if strike == LEAVE:
            longest, limit_s = max(stalls), LONGEST_LEAVE_S
        elif strike == FREEZE:
            longest, limit_s = max(stalls), DETECTED_S + FREED_S
        if longest > limit_s:
            found.append(f"{arm}, {strike}: a stall of {longest:.2f} s")
        if failed > (0 if strike in (LEAVE, JOIN) else 1):
            found.append(f"{arm}, {strike}: {failed} failed steps")
    for result in results.get("restarts", ()):
        if result["arm"].startswith(_OURS):
            found += _broken_restarts(result)
    if (takeovers := results.get("takeovers")) and max(takeovers) > LONGEST_TAKEOVER_S:
        found.append(f"a standby took {max(takeovers):.2f} s to take over")
    for load in results.get("scale", ()):
        if load["arm"] == _OURS and (load["cpu"] > MOST_CPU or load["rss_mb"] > MOST_MB):
            found.append(f"{load['groups']} groups: {load['cpu']:.0%}, {load['rss_mb']:.0f} MB")
    if results.get("histories", {}).get("different"):
        found.append("quorums of some histories differ from torchft's")
    fuzzed = results.get("fuzz")
    if fuzzed and (fuzzed["harmed"] or not fuzzed["alive"]):
        found.append("a message harmed a quorum")
    return found


def _broken_restarts(result: Results) -> list[str]:
    found = []
    for restart in result["restarts"]:
        deaths = int(restart["scene"] == "while a group dies")
        if restart["failed"] > deaths or restart["short"] or restart["stood_still"]:
            found.append(f"restart {restart}")
    if result["ids_back"] or result["unequal"]:
        found.append(f"ids back {result['ids_back']}, weights unequal {result['unequal']}")
    return found


def draw(results: Results, folder: Path) -> None:
    """Save the plots of what there is."""
    if "stalls" in results:
        _draw_stalls(results["stalls"], folder / "stalls.png")
    if "scale" in results:
        _draw_scale(results["scale"], folder / "scale.png")


def _figure(columns: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _draw_stalls(found: list[Results], path: Path) -> None:
    strikes = list(dict.fromkeys(stall["strike"] for stall in found))
    arms = list(dict.fromkeys(stall["arm"] for stall in found))
    figure, axes = _figure(len(strikes))
    for axis, strike in zip(axes, strikes, strict=True):
        for row, arm in enumerate(arms):
            of = [s["stall_s"] for s in found if (s["strike"], s["arm"]) == (strike, arm)]
            colour = "tab:blue" if arm.startswith(_OURS) else "tab:grey"
            axis.plot([max(s, 0.01) for s in of], [row] * len(of), "o", color=colour, alpha=0.5)
        axis.set_xscale("log")
        axis.set_xlim(0.01, 30)
        axis.set_title(strike, loc="left", fontsize=9)
        axis.set_yticks(range(len(arms)), arms if axis is axes[0] else [""] * len(arms))
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("longest stall of the survivors, seconds; one dot a run", fontsize=9)
    figure.savefig(path, dpi=130)


def _draw_scale(found: list[Results], path: Path) -> None:
    figure, axes = _figure(3)
    for arm, colour in (("torchft", "tab:grey"), (_OURS, "tab:blue")):
        loads = [load for load in found if load["arm"] == arm]
        sizes = [load["groups"] for load in loads]
        rounds = [statistics.median(load["rounds_s"] or [float("nan")]) for load in loads]
        for axis, values in zip(
            axes,
            ([100 * load["cpu"] for load in loads], [load["rss_mb"] for load in loads], rounds),
            strict=True,
        ):
            axis.plot(sizes, values, "o-", color=colour, label=arm)
    for axis, title in zip(
        axes, ("heartbeats, % of a core", "memory, MB", "a quorum round, s"), strict=True
    ):
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_xlabel("replica groups", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def spread(seconds: Sequence[float]) -> str:
    """Return median and range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _by(found: Sequence[Results], *keys: str) -> dict[tuple[str, ...], list[Results]]:
    groups: dict[tuple[str, ...], list[Results]] = {}
    for row in found:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: item[0][0])) if len(keys) > 1 else groups


def _table(title: str, *columns: str) -> Table:
    left = ("", "strike", "scene")
    made = (Column(one, justify="left" if one in left else "right") for one in columns)
    return Table(*made, title=title, title_justify="left")
