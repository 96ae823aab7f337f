"""A run is taken from a Weaver that is alive only on demand, and a worker's name never."""

import json
import subprocess

import pytest

from tests.deadlines import DEADLINE_S
from tests.integration.conftest import WEAVER, until
from tests.nats_servers import nats_server

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path):
    with nats_server(tmp_path) as (_, address):
        yield f"nats://{address}"


@pytest.fixture
def start_on(server, start_run):
    """Make runs of one name, each with a state folder of its own, on one server."""
    return lambda settings="": start_run(
        f"[broker]\nurl = '{server}'\n[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n{settings}"
    )


def last_line(text):
    return text.splitlines()[-1]


@pytest.mark.long
def test_a_weaver_of_another_folder_is_refused_without_take_over(start_on):
    here, there = start_on(), start_on()
    first = here.start_weaver()
    refused = there.torchloom("weaver")
    assert refused.returncode == 13
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"torchloom: run live: another Weaver controls it (pid {first.pid} on ")
    assert f"state folder {here.state}, since 20" in line
    assert "--take-over" in line
    assert first.poll() is None

    other = start_on()
    other.config.write_text(other.config.read_text().replace("'live'", "'other'"))
    assert other.start_weaver().poll() is None

    second = there.start_weaver("--take-over")
    assert first.wait(DEADLINE_S) == 13
    assert "another Weaver took over run live" in last_line(first.errors.read_text())
    again = here.torchloom("weaver", "--take-over")
    assert again.returncode == 13
    assert "it was already taken over" in last_line(again.stderr)

    second.terminate()
    assert second.wait(DEADLINE_S) == 0
    here.start_weaver()
    here.kill_weaver()  # it releases nothing, and answers no query
    there.start_weaver()


@pytest.mark.long
def test_two_supervisors_of_one_folder_take_the_run_once_and_a_trainer_gets_in(start_run):
    run = start_run("[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n")
    first = run.start_weaver()
    refused = run.torchloom("weaver")
    assert refused.returncode == 13
    assert f"another Weaver runs on it (pid {first.pid} on " in last_line(refused.stderr)

    epoch, ended = run.ask("status")["epoch"], []
    command = [*WEAVER, "--config", run.config, "--take-over"]
    running = [first, None]

    def start_again():
        """Restart each process that has ended; return whether there was one."""
        for number, process in enumerate(running):
            if process is None or process.poll() is not None:
                ended.extend([] if process is None else [process.returncode])
                running[number] = subprocess.Popen(
                    command, cwd=run.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                run.weavers.append(running[number])
        return len(ended) >= 3

    until(start_again)
    assert set(ended) == {13}
    assert run.ask("status")["epoch"] == epoch + 1
    run.start_light("g0")
    until(lambda: run.worker("g0-0"))


@pytest.mark.long
def test_a_name_in_use_is_refused_to_a_second_trainer_until_the_first_has_ended(start_on):
    run = start_on("stale_after_s = 3.0\n")
    run.start_weaver()
    first = run.start_light("g0")

    def incarnations():
        status = json.loads(run.torchloom("status", "--json").stdout)
        return [row["incarnation"] for row in status["workers"]]

    before = until(incarnations)
    second = run.start_light("g0")
    by = f"another running process (node node-g0, pid {first.process.pid})"
    where = f"g0-0 is already enrolled by {by}"
    until(lambda: where in second.errors)
    assert "set RANK or TORCHLOOM_RANK" in second.errors
    assert len([line for line in second.errors.splitlines() if where in line]) == 1
    assert incarnations() == before
    first.end()
    until(lambda: incarnations() != before)
