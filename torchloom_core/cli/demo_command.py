"""``torchloom demo``: watch a real torchft run lose a node, without help and with it."""

from pathlib import Path

from torchloom_core.cli.output import console


def demo(*, out: Path = Path("torchloom-demo"), seed: int = 0) -> None:
    """Watch a real torchft run lose a node without losing a step.

    The same run is played twice, first without torchLoom's action and then with it.

    Parameters
    ----------
    out
        Folder for logs, plot and trajectory; an earlier demo there is replaced.
    seed
        Seed of the model and of the batches.
    """
    from torchloom_core.demo.play import play
    from torchloom_core.demo.scenario import Scenario

    play(Scenario(seed=seed), out, console())
