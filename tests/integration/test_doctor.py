"""``torchloom doctor`` as a command, beside a Weaver and under real limits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

BEHIND = Path(__file__).parents[1] / "clock_behind.py"


def doctor(*arguments, before=(), cwd=None):
    program = Path(sys.executable).with_name("torchloom")
    return subprocess.run(
        [*before, program, "doctor", *arguments], capture_output=True, text=True, cwd=cwd
    )


def finding_of(result, check):
    found = [one for one in json.loads(result.stdout)["findings"] if one["check"] == check]
    assert len(found) == 1
    return found[0]


def test_a_fresh_folder_is_fine_and_a_missing_join_file_is_a_problem(tmp_path):
    here = doctor(cwd=tmp_path)
    assert here.returncode == 0, here.stdout
    assert here.stdout.rstrip().endswith("0 problem")
    training_host = doctor("--join", "none.json", cwd=tmp_path)
    assert training_host.returncode == 1
    assert "none.json does not exist. To change: copy it" in training_host.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_wire_version_and_clock_are_those_of_the_running_weaver(start_run):
    run = start_run("[weaver]\nstate_dir = 'state'\n")
    run.start_weaver()
    join = run.state / "join.json"
    fine = doctor("--join", str(join), "--json")
    assert finding_of(fine, "wire version")["level"] == "ok"
    assert finding_of(fine, "clock")["level"] == "ok"
    behind = subprocess.run(
        [sys.executable, BEHIND, "60", "doctor", "--join", join, "--json"],
        capture_output=True,
        text=True,
    )
    clock = finding_of(behind, "clock")
    assert clock["level"] == "problem"
    assert "was 60.0" in clock["text"]
    assert "behind the Weaver's" in clock["text"]
    assert behind.returncode == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "check", "change"),
    [
        ("ulimit -n 900", "open files", "LimitNOFILE=2024"),
        ("sysctl -qw net.core.somaxconn=16", "waiting connections", "net.core.somaxconn=1000"),
        (
            "sysctl -qw net.ipv4.ip_local_port_range='40000 41000'",
            "ephemeral ports",
            "net.ipv4.ip_local_port_range",
        ),
    ],
)
def test_a_limit_of_the_system_that_is_too_low_is_named(tmp_path, limit, check, change):
    shell = ["unshare", "-n", "sh", "-c", f'{limit} && exec "$@"', "sh"]
    tried = subprocess.run([*shell, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this user may not set it: {tried.stderr}")
    finding = finding_of(doctor("--workers", "1000", "--json", before=shell, cwd=tmp_path), check)
    assert finding["level"] != "ok"
    assert change in finding["change"]


@pytest.mark.long
def test_a_containers_memory_limit_that_is_too_low_is_named(tmp_path):
    group = Path("/sys/fs/cgroup/memory/torchloom-doctor")
    if not group.parent.is_dir():
        group = Path("/sys/fs/cgroup/torchloom-doctor")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        name = "memory.limit_in_bytes" if group.parent.name == "memory" else "memory.max"
        (group / name).write_text(str(600 << 20))
        shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        finding = finding_of(
            doctor("--workers", "1000", "--json", before=shell, cwd=tmp_path), "memory limit"
        )
    finally:
        group.rmdir()
    assert finding["text"] == "need 724 MB for 1000 workers, was 629 MB"
