"""``torchloom demo``: a real torchft run with a failure, without torchLoom and with it."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from torchloom_core.cli.options import DASHBOARD
from torchloom_core.cli.output import console
from torchloom_core.floor.errors import PluginError

Scenario = Literal["node", "hang", "knobs", "bandwidth", "checkpoints", "mpmd"]


def demo(
    *,
    scenario: Scenario = "node",
    out: Path = Path("torchloom-demo"),
    seed: int = 0,
    dashboard: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Watch a real torchft run lose a node without losing a step.

    The same run is played twice, first with torchft alone and then with torchLoom; the scenarios
    ``knobs``, ``checkpoints`` and ``mpmd`` are played once. These and ``bandwidth`` exit with
    status 4 if a check fails. With --dashboard the run lasts until it is interrupted, and is
    controlled from the dashboard. The demo ends all its processes; after a SIGKILL, the next demo
    in the same folder ends them.

    Parameters
    ----------
    scenario
        node: a node shows ECC errors, then fails. hang: a replica group freezes in a step. knobs:
        knobs change on all ranks at the same step, also while a group is killed. bandwidth: links
        become slow, and the gradient compression adapts. checkpoints: a job under torchrun loses
        nodes, and is restored from the memory of the others. mpmd: a pipeline loses stages, and a
        layer with experts loses a host.
    out
        Folder for logs, plot and trajectory: empty, or of an earlier demo, which is replaced.
    seed
        Seed of the model and the batches.
    dashboard
        Play no scenario: train until Ctrl-C, and print a link to the dashboard.
    """
    needed = ("grpc", "matplotlib", "psutil", "sklearn", "torch", "torchft")
    for package in (*needed, *(DASHBOARD if dashboard else ())):
        if find_spec(package) is None:
            raise PluginError(f'{package} is not installed: pip install "torchloom[demo]"')
    from torchloom_core.demos.stage import stage

    with stage(out):
        if dashboard:
            from torchloom_core.demos.dashboard import TRAINING, play_dashboard

            play_dashboard(replace(TRAINING, seed=seed), out, console())
        else:
            _play(scenario, out, seed)


def _play(scenario: Scenario, out: Path, seed: int) -> None:
    if scenario == "knobs":
        from torchloom_core.demos.knobs.play import play_knobs
        from torchloom_core.demos.knobs.script import TRAINING

        play_knobs(replace(TRAINING, seed=seed), out, console())
    elif scenario == "bandwidth":
        from torchloom_core.demos.bandwidth.phases import TRAINING as BANDWIDTH
        from torchloom_core.demos.bandwidth.play import play_bandwidth

        play_bandwidth(replace(BANDWIDTH, seed=seed), out, console())
    elif scenario == "checkpoints":
        from torchloom_core.demos.checkpoints.play import play_checkpoints
        from torchloom_core.demos.checkpoints.script import TRAINING as CHECKPOINTS

        play_checkpoints(replace(CHECKPOINTS, seed=seed), out, console())
    elif scenario == "mpmd":
        from torchloom_core.demos.mpmd.play import play_mpmd

        play_mpmd(seed, out, console())
    else:
        from torchloom_core.demos.play import play
        from torchloom_core.demos.scenario import HANG, NODE

        play(replace({"node": NODE, "hang": HANG}[scenario], seed=seed), out, console())
