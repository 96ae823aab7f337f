"""``torchloom demo``: watch a real torchft run in trouble, without help and with it."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from torchloom_core.cli.extras import DASHBOARD
from torchloom_core.cli.output import console
from torchloom_core.errors import PluginError

Scenario = Literal["node", "hang", "knobs", "bandwidth"]


def demo(
    *,
    scenario: Scenario = "node",
    out: Path = Path("torchloom-demo"),
    seed: int = 0,
    dashboard: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Watch a real torchft run lose a node without losing a step.

    The same run is played twice, first with torchft alone and then with torchLoom. With the
    scenario ``knobs`` it is played once; this one and ``bandwidth`` end with status 4 if anything
    does not hold that they are to show. With --dashboard it is a run to drive from the dashboard's
    page, until it is interrupted. However it ends, it leaves no process behind; one that
    was killed with SIGKILL may, until the next in its folder.

    Parameters
    ----------
    scenario
        What happens: a node falls ill and dies, a peer freezes in the middle of a step, knobs
        are changed, at one step on all ranks, also while a group is killed, or links become slow
        and how gradients are compressed is chosen anew.
    out
        Folder for logs, plot and trajectory: empty, or an earlier demo's, which is replaced.
    seed
        Seed of the model and of the batches.
    dashboard
        Play no scenario: print a link that opens the page, and go on until Ctrl-C.
    """
    needed = ("grpc", "matplotlib", "psutil", "sklearn", "torch", "torchft")
    for package in (*needed, *(DASHBOARD if dashboard else ())):
        if find_spec(package) is None:
            raise PluginError(f'{package} is not installed: pip install "torchloom[demo]"')
    from torchloom_core.cli.demo.stage import stage

    with stage(out):
        if dashboard:
            from torchloom_core.cli.demo.dashboard import TRAINING, play_dashboard

            play_dashboard(replace(TRAINING, seed=seed), out, console())
        else:
            _play(scenario, out, seed)


def _play(scenario: Scenario, out: Path, seed: int) -> None:
    if scenario == "knobs":
        from torchloom_core.cli.demo.knobs.play import play_knobs
        from torchloom_core.cli.demo.knobs.script import TRAINING

        play_knobs(replace(TRAINING, seed=seed), out, console())
        return
    if scenario == "bandwidth":
        from torchloom_core.cli.demo.bandwidth import play as bandwidth
        from torchloom_core.cli.demo.bandwidth.script import TRAINING as BANDWIDTH

        bandwidth.play_bandwidth(replace(BANDWIDTH, seed=seed), out, console())
        return
    from torchloom_core.cli.demo.play import play
    from torchloom_core.cli.demo.scenario import HANG, NODE

    play(replace({"node": NODE, "hang": HANG}[scenario], seed=seed), out, console())
