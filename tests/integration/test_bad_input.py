"""Whatever is wrong at the start of a Weaver is one clear line and an exit status."""

import os
import socket
import subprocess
import sys

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
