"""The frameworks' examples run with the lines of their pages, without a Weaver."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.deadlines import DEADLINE_S
from tests.docs.attached import SCRIPTS, attached

pytestmark = [pytest.mark.integration, pytest.mark.long]
EXAMPLES = {
    "train_accelerate.py": ("accelerate", "--epochs", "2"),
    "train_deepspeed.py": ("deepspeed", "--epochs", "1"),
    "train_lightning.py": ("lightning", "--steps", "12"),
    "train_transformers.py": ("transformers", "--steps", "12"),
}
ABORTED = "terminate called without an active exception"
"""What torch prints at a rare exit, after the last step, also of a script without the lines."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_trains_to_the_same_loss_with_and_without_the_lines(name, tmp_path):
    package, *arguments = EXAMPLES[name]
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    script, _ = attached(name)
    (tmp_path / "attached.py").write_text(script)
    (tmp_path / "alone.py").write_text((SCRIPTS / name).read_text())
    losses = []
    for file in ("alone.py", "attached.py"):
        folder = tmp_path / file.removesuffix(".py")
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*command, "--nproc-per-node", "2", f"../{file}", *arguments],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0 or ABORTED in done.stderr, done.stderr[-3000:]
        losses.append([x for x in done.stdout.splitlines() if x.startswith("loss ")])
    assert losses[0] == losses[1] != []
