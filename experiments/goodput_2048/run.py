"""Play a job of 2,048 GPUs through InfiniteHBD's own faults, with and without forecasts.

    python experiments/goodput_2048/run.py [--seeds 24] [--jobs 2] [--out build/goodput_2048]

Imports the trace, fits two predictors on its first 150 days, and plays every arm on later time
only: once for a job that restarts as a whole, once for one that recovers per step. Then plays the
job with more and more spares. Prints the README's tables, and writes results.json, goodput.png and
spares.svg beside this file.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCENARIOS = ("restart", "per_step")
UNTIL = "150d"
"""The predictors are fitted on what was before, and nothing before it is played."""
PLAYED_FROM = "157d"
"""That, and the predictors' horizon after it."""
SPARES = "spares=0..16"

DAY_S = 86_400
HORIZON = f"horizon_s={7 * DAY_S}"
PREDICTORS = {
    # The fault count that is forgotten with a time constant of 30 days, tau ln 2 = 1,796,688 s.
    "fault_history": (HORIZON, "half_life_s=1796688", "fit_half_lives_s=[]"),
    "survival": (HORIZON,),
}
POLICIES = (
    "checkpoint_interval",
    "lemon_nodes",
    "failure_forecast",
    "lemon_nodes+failure_forecast",
)

Facts = dict[str, Any]


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    trace = options.out / "infinitehbd.tltrace"
    torchloom("trace", "import", "infinitehbd", options.data / "infinitehbd", trace, "--force")
    models = [fit(name, trace, options.out) for name in PREDICTORS]
    results = HERE / "results.json"
    found: Facts = json.loads(results.read_text(encoding="utf-8"))
    for part in options.only or (*SCENARIOS, "spares"):
        play = sweep if part == "spares" else evaluate
        found[part] = play(part, trace, models, options)
        results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for scenario in SCENARIOS:
        print("\n".join(table(scenario, found[scenario])))
    print("\n".join(spares_table(found["spares"]["sweep"])))
    draw(found, HERE / "goodput.png")


def _options() -> argparse.Namespace:
    data = os.environ.get("TORCHLOOM_DATA") or ROOT.parent / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=[*SCENARIOS, "spares"])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(data))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "goodput_2048")
    return parser.parse_args()


def torchloom(*words: object) -> None:
    """Run and show one torchloom command."""
    line = [str(word) for word in words]
    print(f"$ torchloom {shlex.join(line)}", flush=True)
    subprocess.run([sys.executable, "-m", "torchloom_core.cli", *line], check=True)


def fit(name: str, trace: Path, out: Path) -> str:
    """Fit a predictor on the earlier time; return it as ``--predictor`` wants it."""
    model = out / f"{name}.tlmodel"
    given = [word for option in PREDICTORS[name] for word in ("--option", option)]
    torchloom(
        *("fit", trace, "--predictor", name, "--until", UNTIL, *given),
        *("--tick-s", DAY_S // 24, "--every-s", DAY_S // 2, "--out", model, "--force"),
        *("--config", HERE / "restart.toml"),
    )
    return f"{name}={model}"


def evaluate(
    scenario: str, trace: Path, models: Iterable[str], options: argparse.Namespace
) -> Facts:
    """Play all arms, and return a summary of the report."""
    out = options.out / scenario
    torchloom(
        *("evaluate", trace, "--config", HERE / f"{scenario}.toml"),
        *(word for policy in POLICIES for word in ("--policy", policy)),
        *(word for model in models for word in ("--predictor", model)),
        *("--seeds", options.seeds, "--jobs", options.jobs, "--out", out),
    )
    return summary_of(results_of(out))


def sweep(part: str, trace: Path, models: Iterable[str], options: argparse.Namespace) -> Facts:
    """Play the job with more and more spares, and return a summary of the report."""
    del models  # no policy forecasts
    out = options.out / part
    torchloom(
        *("evaluate", trace, "--config", HERE / f"{part}.toml", "--until", PLAYED_FROM),
        *("--sweep", SPARES, "--no-sensitivity"),
        *("--seeds", options.seeds, "--jobs", options.jobs, "--out", out),
    )
    shutil.copy(out / "sweep.svg", HERE / "spares.svg")
    report = results_of(out)
    simulation = report["simulation"]
    return {
        "assumptions": report["assumptions"],
        **{name: simulation[name] for name in ("job", "seeds", "sweep")},
    }


def results_of(out: Path) -> Facts:
    """Return what was found on the one trace of a report."""
    results: Facts
    (results,) = json.loads((out / "report.json").read_text(encoding="utf-8"))["traces"]
    return results


def summary_of(report: Facts) -> Facts:
    """Leave out the timelines and what single runs did, but for their goodput."""
    simulation = report["simulation"]
    goodput: dict[str, list[float]] = {}
    for run in simulation["runs"]:
        goodput.setdefault(run["arm"], []).append(round(run["goodput"], 6))
    names = ("job", "seeds", "reference", "oracle", "arms", "break_even", "sensitivity")
    return {
        "assumptions": report["assumptions"],
        **{name: simulation[name] for name in names},
        "unknown_follows": simulation["unknown_follows"],
        "goodput_by_seed": goodput,
    }


def table(scenario: str, found: Facts) -> list[str]:
    """Return the Markdown table of one scenario, best arm first."""
    lines = [
        "",
        f"### {scenario}: gains in points",
        "",
        f"| arm | goodput | over no policy | over {found['reference']} | to oracle | failures "
        "| moves | of them right |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    right = found["break_even"]["measured"]
    for arm in ranked(found["arms"]):
        alone, gain = arm["versus_without"], arm["versus_reference"]
        way = arm["to_oracle"]
        cells = (
            f"**{arm['name']}**" if arm["kind"] == "candidate" else arm["name"],
            f"{arm['goodput']['value']:.4f}",
            points(alone) if alone else "",
            points(gain) if gain else "",
            f"{way:.0%}" if way is not None and arm["kind"] == "candidate" else "",
            f"{arm['failures']:.1f}",
            f"{arm['migrations']:.1f}",
            f"{right[arm['name']]:.1%}" if arm["name"] in right else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
        if planned := arm.get("as_planned"):
            value, gain = planned["goodput"]["value"], points(planned["versus_reference"])
            lines.append(f"| {arm['name']}, as planned | {value:.4f} |  | {gain} |  |  |  |  |")
    return lines


def spares_table(found: Facts) -> list[str]:
    """Return the Markdown table of goodput, and of what one more brings, by the spares."""
    names = list(found["lines"])
    lines = ["", f"| spares | {' | '.join(names)} |", f"|---:{'|---:' * len(names)}|"]
    for at in zip(*found["lines"].values(), strict=True):
        cells = []
        for point in at:
            more = point["more_gpu_h_per_day"]
            brings = f", {more['value']:.1f}" if more else ""
            cells.append(f"{point['goodput']['value']:.4f}{brings}")
        lines.append(f"| {at[0]['value']} | {' | '.join(cells)} |")
    return lines


def ranked(arms: Sequence[Facts]) -> list[Facts]:
    """Return the arms, the best first."""
    return sorted(arms, key=lambda arm: (-arm["goodput"]["value"], arm["name"]))


def points(gain: Facts) -> str:
    """Return a gain and its interval in points of goodput."""
    value, low, high = (
        None if share is None else f"{round(100 * share, 2) + 0.0:+.2f}"  # never -0.00
        for share in (gain["value"], gain["low"], gain["high"])
    )
    return f"{value}" if low is None else f"{value} [{low}, {high}]"


def draw(found: Facts, path: Path) -> None:
    """Draw what every arm gains; hollow: if more groups than planned are worth nothing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    for place, scenario in enumerate(SCENARIOS, start=1):
        axes = figure.add_subplot(2, 1, place)
        arms = [arm for arm in ranked(found[scenario]["arms"]) if shown(arm)]
        for row, arm in enumerate(reversed(arms)):
            gain = arm["versus_reference"]
            low, high = gain["low"] or gain["value"], gain["high"] or gain["value"]
            color = {"candidate": "tab:blue", "oracle": "tab:green"}.get(arm["kind"], "tab:gray")
            axes.plot([100 * low, 100 * high], [row, row], color=color)
            axes.plot(100 * gain["value"], row, "o", color=color)
            if planned := arm.get("as_planned"):
                least = planned["versus_reference"]["value"]
                axes.plot(100 * least, row, "o", color=color, markerfacecolor="none")
        axes.set_yticks(range(len(arms)), [arm["name"] for arm in reversed(arms)], fontsize=8)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(f"recovery {scenario}, reference {found[scenario]['reference']}")
        axes.set_xlabel("gain in points of goodput, 95 % interval over seeds")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def shown(arm: Facts) -> bool:
    """Leave out the reference, the bound, and static intervals far from all."""
    return bool(arm["versus_reference"]) and arm["kind"] != "bound"


if __name__ == "__main__":
    main()
