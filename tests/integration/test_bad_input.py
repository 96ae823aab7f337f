"""Whatever is wrong at the start of a Weaver is one clear line and an exit status."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from tests.deadlines import DEADLINE_S

pytestmark = pytest.mark.integration


@pytest.fixture
def weaver(tmp_path):
    """Run a Weaver that cannot start; return its exit status and error."""

    def run(config, **environment):
        (tmp_path / "torchloom.toml").write_text(config)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NATS_")}
        result = subprocess.run(
            [sys.executable, "-m", "torchloom_core.cli", "weaver"],
            cwd=tmp_path,
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert result.stderr.count("\n") == 1, result.stderr
        assert not result.stdout
        return result.returncode, result.stderr.strip()

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            "[weaver]\ntick = 1\n",
            "torchloom.toml:2: weaver.tick: unknown key; did you mean tick_s?",
        ),
        (
            '[weaver]\n\ntick_s = "slow"\n',
            "torchloom.toml:3: weaver.tick_s: need a number > 0 and <= 1e+09, was 'slow'",
        ),
        ("[weaver\n", "torchloom.toml:1: not valid TOML"),
        (
            "[policies.stragler]\n",
            "torchloom.toml:1: policies.stragler: no policy has this name; did you mean straggler?",
        ),
        (
            "[policies.failure_forecast]\npredictor = 'trnd'\n[predictors.trend]\n",
            "torchloom.toml:1: policies.failure_forecast: need predictor 'trnd' under "
            "[predictors]; did you mean trend?",
        ),
        (
            "[arbiter]\nforbidden = [{policy = 'silense', action = 'drain'}]\n",
            "torchloom.toml:2: arbiter.forbidden[0].policy: no policy is called 'silense'; "
            "did you mean silence?",
        ),
        (
            "[predictors.trends]\n",
            "torchloom.toml:1: predictors.trends: no predictor has this name; did you mean trend?",
        ),
        (
            "[policies.straggler]\nratios = 2\n",
            "torchloom.toml:2: policies.straggler.ratios: unknown key; did you mean ratio?",
        ),
    ],
)
def test_a_wrong_config_is_one_line_with_its_place(weaver, config, line):
    status, error = weaver(config)
    assert status == 2
    assert error.startswith(f"torchloom: {line}")


@pytest.mark.long
def test_an_unreachable_broker_is_one_line(weaver):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{closed.getsockname()[1]}"
        status, error = weaver(f"[broker]\nurl = '{url}'\n")
    assert status == 3
    assert error.startswith(f"torchloom: {url}: no NATS server can be reached: ")


@pytest.mark.long
def test_an_occupied_port_is_one_line(weaver):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, error = weaver(f"[broker]\nport = {port}\n")
    assert status == 3
    assert error == (
        f"torchloom: broker: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "set broker.port to another port, or to 0 for any free one"
    )


@pytest.mark.long
def test_a_server_program_that_is_too_old_is_one_line(weaver, tmp_path):
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.25\n")
    old.chmod(0o755)
    status, error = weaver("", TORCHLOOM_NATS_SERVER=str(old))
    assert status == 3
    assert error == f"torchloom: {old}: need nats-server >= 2.11, was 2.9.25"


@pytest.mark.long
def test_a_running_server_that_is_too_old_is_one_line(weaver):
    with old_server() as url:
        status, error = weaver(f"[broker]\nurl = '{url}'\n")
    assert status == 3
    assert error == f"torchloom: {url}: need nats-server >= 2.11, was 2.9.25"


@contextlib.contextmanager
def old_server():
    """A server that greets clients as nats-server 2.9 did, and answers their PING."""
    info = {"server_id": "OLD", "version": "2.9.25", "max_payload": 1 << 20, "proto": 1}

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                client.sendall(b"INFO " + json.dumps(info).encode() + b"\r\n")
                while data := client.recv(4096):
                    client.sendall(data.count(b"PING\r\n") * b"PONG\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.long
@pytest.mark.parametrize("place", ["file/state", "/proc/torchloom"])
def test_a_state_folder_that_cannot_be_written_is_one_line(weaver, tmp_path, place):
    (tmp_path / "file").write_text("")
    status, error = weaver(f"[weaver]\nstate_dir = '{place}'\n")
    assert status == 4
    assert place in error
    assert error.startswith("torchloom: ")


@pytest.mark.long
def test_a_trajectory_that_cannot_be_written_is_one_line(start_run):
    run = start_run("[weaver]\nstate_dir = 'state'\n")
    run.state.mkdir()
    (run.state / "trajectory").write_text("")
    result = run.torchloom("weaver")
    run.kill_broker()
    assert result.returncode == 4
    *_, last = result.stderr.splitlines()
    assert last == "torchloom: state/trajectory/live: cannot be written: Not a directory"
    assert "Traceback" not in result.stderr


@pytest.mark.long
def test_with_take_over_a_weaver_takes_the_run_and_the_first_ends_with_one_line(start_run, until):
    run = start_run("[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n")
    first = run.start_weaver()
    epoch = run.ask("status")["epoch"]
    second = run.start_weaver("--take-over")
    assert first.wait(DEADLINE_S) == 13
    *_, last = first.errors.read_text().splitlines()
    assert last == f"torchloom: another Weaver took over run live under epoch {epoch + 1}"
    assert "Traceback" not in first.errors.read_text()
    assert run.ask("status")["epoch"] == epoch + 1
    ticks = run.ask("status")["ticks"]
    until(lambda: run.ask("status")["ticks"] > ticks)
    assert second.poll() is None
    there = "another Weaver of this run is connected"
    assert there in second.errors.read_text()
    assert there not in first.errors.read_text()
