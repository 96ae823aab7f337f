"""What ``torchloom deploy`` writes, checked by the programs that would read it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from torchloom_core.cli.deploy_command import WAYS, deploy
from torchloom_core.floor.errors import ConfigError

integration = pytest.mark.integration


def needs(program):
    found = shutil.which(program)
    return pytest.mark.skipif(found is None, reason=f"{program} is not installed")


def checked(*command, cwd=None):
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_written_with_the_programs_of_this_installation(tmp_path, way, capsys):
    deploy(way, to=tmp_path / "out")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) == capsys.readouterr().out.count("wrote ")
    text = "".join(path.read_text() for path in written)
    assert "@BIN@" not in text
    assert "@VERSION@" not in text
    if way in ("systemd", "slurm"):
        assert str(Path(sys.executable).parent) in text
    with pytest.raises(ConfigError, match="exists already; --force overwrites it"):
        deploy(way, to=tmp_path / "out")
    deploy(way, to=tmp_path / "out", force=True)


def test_a_way_that_is_not_known_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"was 'sytemd'.*systemd"):
        deploy("sytemd", to=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@integration
@needs("systemd-analyze")
def test_systemd_accepts_the_units_and_finds_little_exposed(tmp_path):
    deploy("systemd", to=tmp_path)
    units = sorted(tmp_path.iterdir())
    assert checked("systemd-analyze", "verify", *units) == ""
    for unit in units:
        shown = checked("systemd-analyze", "security", "--offline=true", unit)
        exposure = float(shown.rsplit("exposure level for")[-1].split(": ")[1].split()[0])
        assert exposure < 4.0, unit


@integration
def test_the_shell_accepts_the_batch_script(tmp_path):
    deploy("slurm", to=tmp_path)
    checked("bash", "-n", tmp_path / "torchloom.sbatch")
    if shutil.which("shellcheck"):
        checked("shellcheck", tmp_path / "torchloom.sbatch")


def test_the_charts_values_are_those_of_its_schema(tmp_path):
    deploy("helm", to=tmp_path)
    chart = tmp_path / "torchloom"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"])
    for name in ("nats", "weaver", "lighthouse"):
        assert set(values[name]) == set(schema["properties"][name]["properties"])


SETTINGS = [
    ["--set", "nats.password=abc"],
    ["--set", "nats.existingSecret=mine", "--set", "nats.tlsSecret=tls"],
    ["--set", "nats.password=abc", "--set", "nats.replicas=1", "--set", "lighthouse.enabled=false"],
]


@integration
@needs("helm")
@pytest.mark.parametrize("settings", SETTINGS)
def test_helm_renders_objects_that_kubernetes_and_nats_server_accept(
    tmp_path, settings, monkeypatch
):
    from torchloom_core.live.transport.broker.binary import find_server

    deploy("helm", to=tmp_path)
    checked("helm", "lint", tmp_path / "torchloom", *settings)
    rendered = checked("helm", "template", "loom", tmp_path / "torchloom", *settings)
    (tmp_path / "all.yaml").write_text(rendered)
    if shutil.which("kubernetes-validate"):
        checked("kubernetes-validate", "--strict", tmp_path / "all.yaml")
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    kinds = [one["kind"] for one in objects]
    assert kinds.count("StatefulSet") == kinds.count("PodDisruptionBudget") == 2
    assert kinds.count("Deployment") == ("lighthouse.enabled=false" not in settings)
    assert ("Secret" in kinds) == ("nats.password=abc" in settings)
    config = next(one["data"]["nats.conf"] for one in objects if one["kind"] == "ConfigMap")
    if "nats.tlsSecret=tls" not in settings:
        (tmp_path / "nats.conf").write_text(config)
        monkeypatch.setenv("POD_NAME", "loom-nats-0")
        monkeypatch.setenv("NATS_PASSWORD", "abc")
        monkeypatch.setenv("NATS_ROUTES", '["nats://routes:abc@loom-nats-0:6222"]')
        assert "is valid" in checked(find_server(), "-t", "-c", tmp_path / "nats.conf")


@integration
@needs("helm")
def test_helm_refuses_a_chart_without_a_password_or_with_two_servers(tmp_path):
    deploy("helm", to=tmp_path)
    for settings, reason in (
        ([], "set nats.password, or nats.existingSecret"),
        (["--set", "nats.password=abc", "--set", "nats.replicas=2"], "nats.replicas"),
    ):
        command = ["helm", "template", "loom", tmp_path / "torchloom", *settings]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode != 0
        assert reason in result.stderr
