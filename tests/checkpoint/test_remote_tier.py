"""A run whose object store fails trains on, with a line for each save, and restores from it."""

import re
from contextlib import ExitStack

import pytest

from tests.checkpoint.faulty_proxy import FaultyProxy
from tests.checkpoint.s3_server import new_bucket, s3_server, use
from tests.checkpoint.test_resume import Job, kill_tree, steps
from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", ["gone", "503", "slow"])
def test_a_run_trains_on_and_saves_again_once_its_store_is_back(tmp_path, monkeypatch, fault):
    with s3_server() as server, FaultyProxy(server) as proxy, ExitStack() as until_the_end:
        use(monkeypatch, server)
        url = f"s3://{new_bucket(server)}/run-7"
        remote = storage_at(url)
        assert remote.folders() == []  # it has taken the server's address, not the proxy's
        use(monkeypatch, proxy.url)
        job = Job(tmp_path)
        often = ("--step-s", "0.02", "--steps", "100000", "--remote", url)
        process = job.start("--every-s", "0.5", "--remote-every-s", "0.5", *often)
        until_the_end.callback(kill_tree, process)

        def saves_after(step):
            return lambda: any(folder.step > step for folder in complete_folders(remote))

        job.until(saves_after(-1))
        match fault:
            case "gone":
                proxy.vanish()
            case "503":
                proxy.is_unavailable = True
                proxy.cut()
            case "slow":
                proxy.bytes_per_s = 20e3
        begun = max(steps(job.journal()))
        if fault != "slow":
            job.until(lambda: len(not_saved(job)) >= 2)
        job.until(lambda: max(steps(job.journal())) > begun + 100)
        job.until(lambda: job.complete()[0].step > begun + 10)
        if fault == "gone":
            proxy.appear()
        proxy.is_unavailable, proxy.bytes_per_s = False, 0.0
        job.until(saves_after(max(steps(job.journal()))))
        until_the_end.close()
        assert "Traceback" not in job.errors()
        lines = not_saved(job)
        assert len(lines) == len(set(lines))
        assert all(url in line for line in lines)

        job.finish("--steps", "1", "--remote", url, place=tmp_path / "other", journal="other")
        [newest, *_] = complete_folders(remote)
        assert job.journal("other")[0] == f"begin {newest.step}"
        assert sum(Checkpoint([remote], str(newest)).verify()) > 0


def not_saved(job):
    """Return the lines on checkpoints that were not saved."""
    return re.findall(r"^.*not saved.*$", job.errors(), re.MULTILINE)
