"""``torchloom demo``: watch a real torchft run lose a node, without help and with it."""

from importlib.util import find_spec
from pathlib import Path

from torchloom_core.cli.output import console
from torchloom_core.errors import PluginError


def demo(*, out: Path = Path("torchloom-demo"), seed: int = 0) -> None:
    """Watch a real torchft run lose a node without losing a step.

    The same run is played twice, first without torchLoom's action and then with it.

    Parameters
    ----------
    out
        Folder for logs, plot and trajectory: empty, or an earlier demo's, which is replaced.
    seed
        Seed of the model and of the batches.
    """
    for package in ("matplotlib", "psutil", "sklearn", "torch", "torchft"):
        if find_spec(package) is None:
            raise PluginError(f'{package} is not installed: pip install "torchloom[demo]"')
    from torchloom_core.cli.demo.play import play
    from torchloom_core.cli.demo.scenario import Scenario

    play(Scenario(seed=seed), out, console())
