"""The alert rules and the dashboard use metrics that exist, and fire when they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torchloom_core.cli.metrics_commands import dashboard, rules
from torchloom_core.floor.errors import StateError
from torchloom_core.live.lighthouse import status_page

OWN = Path(__file__).parent
METRICS = Path(status_page.__file__).parents[1] / "weaver" / "metrics"
SOURCE = "".join(path.read_text() for path in METRICS.glob("*.py"))


@pytest.fixture
def written(tmp_path):
    """Both files, as the commands write them."""
    paths = tmp_path / "rules.yml", tmp_path / "dashboard.json"
    rules(to=paths[0])
    dashboard(to=paths[1])
    return paths


def exists(name):
    """Whether a metric of this name is made, by its name in the source."""
    if name.startswith("process_"):
        return True  # of prometheus_client
    stem = re.sub(r"_(total|bucket)$", "", name.removeprefix("torchloom_"))
    source = SOURCE
    for prefix, text in (
        ("lighthouse_", Path(status_page.__file__).read_text()),
        ("broker_", (METRICS / "broker.py").read_text()),
    ):
        if stem.startswith(prefix):
            stem, source = stem.removeprefix(prefix), text
    histogram = re.sub(r"^weaver_(.*)_seconds$", r"\1", stem)
    return re.search(rf'"(torchloom_(broker_)?)?({stem}|{histogram})"', source) is not None


def test_rules_and_dashboard_use_metrics_that_exist(written):
    for path in written:
        names = set(re.findall(r"\b(?:torchloom|process)_[a-z_]+\b", path.read_text()))
        assert len(names) > 15
        assert [name for name in names if not exists(name)] == []


def test_the_dashboard_is_valid_by_grafanas_own_model(written):
    model = pytest.importorskip("grafana_foundation_sdk.models.dashboard").Dashboard
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder").JSONEncoder
    given = json.loads(written[1].read_text())
    back = json.loads(encoder().encode(model.from_json(given)))
    assert [panel["targets"] for panel in given["panels"] if panel["type"] != "row"] == [
        panel["targets"] for panel in back["panels"] if panel["type"] != "row"
    ]
    assert given["templating"]["list"][1]["query"] == back["templating"]["list"][1]["query"]
    assert len({panel["id"] for panel in given["panels"]}) == len(given["panels"])


def test_no_two_panels_overlap(written):
    taken = set()
    for panel in json.loads(written[1].read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of prometheus")
def test_the_rules_fire_when_they_should(written, tmp_path):
    tests = tmp_path / "tests.yml"
    text = (OWN / "alert_rules_test.yml").read_text().replace("RULES", str(written[0]))
    tests.write_text(text)
    for command in (["check", "rules", written[0]], ["test", "rules", tests]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path):
    with pytest.raises(StateError, match=r"missing/rules\.yml: cannot be written: No such file"):
        rules(to=tmp_path / "missing" / "rules.yml")
