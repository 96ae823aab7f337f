"""The plot of the demo: the pipeline's steps and losses, and those of the experts."""

from pathlib import Path

from torchloom_core.demos.mpmd.report import Report

_COLOURS = ("#b5482e", "#7a9a3a", "#1f6f8b")
_SMOOTHED = 5


def draw(path: Path, report: Report) -> None:
    """Save the plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    steps, experts = panels = figure.subplots(2, 1)
    zero = min(log.steps[0]["t"] for log in report.pipeline.logs.values() if log.steps)
    for name, log in report.pipeline.logs.items():
        times = [row["t"] - zero for row in log.steps]
        steps.plot(times, [row["step"] for row in log.steps], lw=1.2, label=name)
    for loss in report.pipeline.losses:
        steps.axvline(loss.at - zero, color="black", lw=1)
        text = f"{loss.worker} killed\n{loss.answer}\nstall {loss.stall_s:.2f} s"
        steps.annotate(text, (loss.at - zero, 1.01), xycoords=("data", "axes fraction"), fontsize=8)
    steps.set_xlabel("s since the first step")
    steps.set_ylabel("step of each worker")
    steps.legend(loc="lower right", frameon=False, fontsize=8, ncols=4)
    for run, colour, line in zip(report.experts, _COLOURS, ("-", "-", "--"), strict=True):
        rows = {row["step"]: row["loss"] for log in run.survivors for row in log.steps}
        means = [
            sum(rows[k] for k in range(step - _SMOOTHED + 1, step + 1)) / _SMOOTHED
            for step in range(_SMOOTHED, run.part.steps + 1)
        ]
        places = range(_SMOOTHED, run.part.steps + 1)
        experts.plot(places, means, color=colour, lw=1.6, ls=line, label=run.part.name)
        experts.axvline(run.losses[0].step, color=colour, lw=1, ls=":")
    experts.set_xlabel("step; dotted: a worker with two of eight experts is killed")
    experts.set_ylabel(f"loss, mean of {_SMOOTHED} steps")
    experts.set_yscale("log")
    experts.legend(loc="upper right", frameon=False, fontsize=9)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
