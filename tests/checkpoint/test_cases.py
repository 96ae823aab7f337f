"""A run that was killed goes on to the bit, whatever its script trains with."""

import multiprocessing
import signal

import pytest

from tests.checkpoint.case_trainer import DEADLINE_S, train
from tests.checkpoint.cases import CASES, RANKS

pytestmark = [pytest.mark.integration, pytest.mark.long]


PRELOADED = (
    "torchloom_threadlet.checkpoint.attached", "torch._dynamo", "torchdata.stateful_dataloader",
)  # fmt: skip


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.checkpoint.case_trainer", *PRELOADED])
    return context


@pytest.fixture
def run(processes, tmp_path):
    """Runs all ranks of a case in a folder; returns their exit codes."""

    def run(name, folder, *arguments, ranks=None, **options):
        (tmp_path / folder).mkdir(exist_ok=True)
        ranks, started = RANKS.get(name, 0) if ranks is None else ranks, []
        for rank in range(ranks or 1):
            words = (name, tmp_path / folder, rank, ranks, *arguments)
            started.append(processes.Process(target=train, args=words, kwargs=options))
            started[-1].start()
        for process in started:
            process.join(DEADLINE_S)
        return {process.exitcode for process in started}

    return run


def journals(folder):
    return [path.read_text().splitlines() for path in sorted(folder.glob("journal.*"))]


def errors(folder):
    return (folder / "errors").read_text()


AT = {name: 9 for name in CASES} | {"sgd": 0}
"""The step at which each case saves; loaders have batches for 7 steps, or 4 with two ranks."""


@pytest.mark.parametrize(
    ("name", "at", "plain"),
    [
        *((name, AT[name], False) for name in CASES),
        *(("loader_0", at, plain) for at in (6, 7, 9) for plain in (False, True)),
        *(("loader_2", at, plain) for at in (6, 12) for plain in (False, True)),
        ("loader_kept", 6, False), ("loader_kept", 6, True), ("stateful_sampler", 11, False),
    ],
)  # fmt: skip
def test_a_killed_run_goes_on_as_an_undisturbed_one(run, tmp_path, name, at, plain):
    assert run(name, "whole", plain=plain) == {0}, errors(tmp_path / "whole")
    assert run(name, "cut", at, plain=plain) == {-signal.SIGKILL}, errors(tmp_path / "cut")
    assert run(name, "cut", plain=plain) == {0}, errors(tmp_path / "cut")
    for whole, cut in zip(*(journals(tmp_path / name) for name in ("whole", "cut")), strict=True):
        [_, begin] = [line for line in cut if line.startswith("begin")]
        assert begin != "begin -1"
        expected = {line.split()[1]: line for line in whole if line.startswith("step")}
        found = {line.split()[1]: line for line in cut if line.startswith("step")}
        assert found == expected
        assert cut[-1] == whole[-1]
