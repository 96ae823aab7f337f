"""The frameworks' examples run with the lines of their pages, without a Weaver."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.deadlines import DEADLINE_S
from tests.docs.attached import SCRIPTS, attached
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]
EXAMPLES = {
    "train_accelerate.py": ("accelerate", "--epochs", "2"),
    "train_deepspeed.py": ("deepspeed", "--epochs", "1"),
    "train_lightning.py": ("lightning", "--steps", "12"),
    "train_transformers.py": ("transformers", "--steps", "12"),
}
ABORTED = "terminate called without an active exception"
"""What torch prints at a rare exit, after the last step, also of a script without the lines."""


EXIT_S = 20.0


def losses_of(command, folder):
    """Return the losses that it prints; torch may abort or hang at the exit after that."""
    folder.mkdir()
    out, err = folder / "out", folder / "err"

    def printed():
        return [line for line in out.read_text().splitlines() if line.startswith("loss ")]

    with out.open("w") as stdout, err.open("w") as stderr:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, env=environment, stdout=stdout, stderr=stderr, cwd=folder
        )
        until(lambda: process.poll() is not None or printed())
        try:
            process.wait(EXIT_S)
            is_ended = process.returncode == 0 or ABORTED in err.read_text()
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            process.wait(DEADLINE_S)
            is_ended = True
    assert is_ended, err.read_text()[-3000:]
    return printed()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_trains_to_the_same_loss_with_and_without_the_lines(name, tmp_path):
    package, *arguments = EXAMPLES[name]
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    script, _ = attached(name)
    (tmp_path / "attached.py").write_text(script)
    (tmp_path / "alone.py").write_text((SCRIPTS / name).read_text())
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone, with_lines = (
        losses_of([*run, f"../{file}", *arguments], tmp_path / file.removesuffix(".py"))
        for file in ("alone.py", "attached.py")
    )
    assert alone == with_lines != []
