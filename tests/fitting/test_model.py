"""A model on disk is whole and what it was, or refused in one line."""

import hashlib
import json
import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.fitting.plugins import Blind, Heat, info
from torchloom_core.floor.errors import ModelError
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.learning import model as model_module
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.fitted import load_fitted
from torchloom_core.lab.learning.model import Model, ModelInfo
from torchloom_core.testing import view_of


@pytest.fixture(scope="module")
def model(bundle, settings):
    return fit(bundle, info(Heat), {}, settings)


@pytest.fixture
def path(model, tmp_path):
    path = tmp_path / "heat.tlmodel"
    model.save(path)
    return path


def refused(path, cls=Heat):
    with pytest.raises(ModelError) as caught:
        load_fitted(path, cls)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


def files(folder: Path):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_was_written_is_read_back(model, path):
    read = Model.load(path)
    assert read == model
    assert read.digest == model.digest


def test_a_model_is_json_parts_and_a_card_and_no_pickle(path):
    assert sorted(files(path)) == ["card.json", "card.md", "model.json", "parts/heat.json"]
    assert json.loads(files(path)["model.json"])["options"] == {
        "metrics": ["heat"],
        "horizon_s": 172800.0,
        "every_s": 86400.0,
    }


def test_a_loaded_predictor_makes_the_same_forecasts_as_the_fitted_one(model, path):
    fitted, _ = load_fitted(path, Heat)
    view = view_of({"heat": [0.0, 1.0, 5.0, np.nan]})
    own = Heat(Heat.Options(metrics=("heat",)))
    own.restore(model.parts)
    wanted = model.info.calibration.apply(own.forecast(view).probability)
    assert not model.info.calibration.is_identity
    assert np.array_equal(fitted.forecast(view).probability, wanted, equal_nan=True)
    assert (fitted.name, fitted.horizon_s, fitted.every_s) == ("heat", 172800.0, 86400.0)
    assert [need.metric for need in fitted.needs] == ["heat"]
    assert fitted.card == model.card


def test_the_card_is_to_be_read(path):
    page = (path / "card.md").read_text()
    for text in (
        "# heat (tests 1.0)",
        "**Useful: AUPRC is above that of a random score",
        "| scored on |",
        "| random |",
        "for 10 false alarms per 1,000 node-days on the ",
        "| false alarms per 1,000 node-days |",
        "## Limits",
        "No comparison with fault_history: it is not installed",
    ):
        assert text in page


def test_a_model_of_another_schema_is_refused(path):
    table = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps(table | {"schema": 1}))
    assert refused(path) == "/model.json: need schema 3, was 1"


def test_a_model_of_before_predictors_learned_again_is_read_as_it_is(path, model):
    table = json.loads((path / "model.json").read_text())
    del table["calibration"]["stretch"], table["calibration"]["shift"]
    blank = msgspec.json.format(msgspec.json.encode(table | {"sha256": ""}), indent=2) + b"\n"
    table["sha256"] = hashlib.sha256(blank).hexdigest()
    (path / "model.json").write_text(json.dumps(table))
    calibration = load_fitted(path, Heat)[1].info.calibration
    assert (calibration.stretch, calibration.shift) == (msgspec.UNSET, msgspec.UNSET)
    was = model.info.calibration
    expected = Calibration(slope=was.slope, intercept=was.intercept, stretch=1.0, shift=0.0)
    assert calibration.apply(np.array([0.3])) == expected.apply(np.array([0.3]))


@pytest.mark.parametrize(
    ("file", "was", "now"),
    [
        ("parts/heat.json", "", "0"),
        ("card.json", '"low"', '"lowest"'),
        ("model.json", '"forecast"', '"detect"'),
    ],
)
def test_a_file_that_was_changed_is_refused(path, file, was, now):
    (path / file).write_text((path / file).read_text().replace(was, now, 1))
    assert refused(path).startswith(f"/{file}: need SHA-256 ")


def sha256_of(table):
    info = msgspec.convert(table | {"sha256": ""}, ModelInfo)
    text = msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n"
    return hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    ("what", "value", "needed"),
    [
        ("predictor", "blind", "'heat'"),
        ("task", "detect", "'forecast'"),
        ("until_ns", 5, r"\d+"),
        ("horizon_s", 5.0, "172800.0"),
        ("lead_s", 5.0, "0.0"),
        ("threshold", 5.0, r"0\.\d+"),
    ],
)
def test_a_model_that_contradicts_its_card_is_refused(model, tmp_path, what, value, needed):
    path = tmp_path / "heat.tlmodel"
    Model(replace(model.info, **{what: value}), model.parts, model.card).save(path)
    text = rf": need {what} {needed} in model\.json, as in card\.json, was {value!r}"
    assert re.fullmatch(text, refused(path))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tick_s": 0.0}, "tick_s: need a number > 0 and <= 1e+09, was 0.0"),
        ({"tick_s": 1e300}, "tick_s: need a number > 0 and <= 1e+09, was 1e+300"),
        ({"repair_s": 1e300}, "repair_s: need a number >= 0 and <= 1e+09, was 1e+300"),
        ({"calibration": Calibration(slope=0.0)}, "calibration.slope: need a number > 0 and"),
        ({"calibration": Calibration(slope=1e308)}, "calibration.slope: need a number > 0 and"),
    ],
)
def test_a_model_of_a_pace_or_a_calibration_that_none_has_is_refused(
    model, tmp_path, change, problem
):
    path = tmp_path / "heat.tlmodel"
    Model(replace(model.info, **change), model.parts, model.card).save(path)
    assert refused(path).startswith(f"/model.json: {problem}")


def test_a_part_that_is_missing_is_refused(path):
    (path / "parts" / "heat.json").unlink()
    assert refused(path) == "/parts/heat.json: cannot be read: No such file or directory"


@pytest.mark.parametrize("name", ["parts/../../x", "/dev/zero", "parts/a\0b", "parts/\ud800"])
def test_what_is_no_name_of_a_part_is_refused(path, name):
    table = json.loads((path / "model.json").read_text())
    table["files"][name] = "0"
    if name.isascii():  # else there is no JSON that could be summed
        table["sha256"] = sha256_of(table)
    (path / "model.json").write_text(json.dumps(table))
    problem = refused(path)
    assert problem.startswith((": need a plain name for a part, was ", "/model.json: need a JSON"))


@pytest.mark.parametrize("name", ["model.json", "card.json", "parts/heat.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_might_never_end_is_refused_and_not_read(path, name, kind):
    (path / name).unlink()
    if kind == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to("/dev/zero")
    assert refused(path) == f"/{name}: cannot be read: Not a regular file"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "/model.json: need a JSON object: "),
        ("[]", "/model.json: need a JSON object: "),
        ('{"schema": 3}', "/model.json: missing key 'predictor'"),
    ],
)
def test_a_model_that_is_no_json_is_refused(path, text, problem):
    (path / "model.json").write_text(text)
    assert refused(path).startswith(problem)


def test_what_is_no_model_is_refused(tmp_path):
    assert refused(tmp_path / "none") == ": need a model, was nothing"
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file") == ": need a model, was a file"
    assert refused(tmp_path) == ": need a file model.json, was none"


def test_the_model_of_another_predictor_is_refused(path):
    assert refused(path, Blind) == ": need a model of blind, was one of 'heat'"


def test_a_model_that_the_installed_predictor_does_not_take_is_refused(path):
    class Other(Heat):
        def restore(self, parts):
            raise KeyError("level")

    assert refused(path, Other) == (
        ": need a model of the installed heat (this one is of tests 1.0; fit it again): 'level'"
    )


def test_a_model_is_replaced_only_if_that_is_wanted_and_it_is_one(model, path, tmp_path):
    with pytest.raises(ModelError, match="exists already"):
        model.save(path)
    model.save(path, force=True)
    (tmp_path / "thesis.tlmodel").mkdir()
    with pytest.raises(ModelError, match="--force replaces only models, and this is none"):
        model.save(tmp_path / "thesis.tlmodel", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heat.tlmodel", "thesis.tlmodel"]


def test_a_model_that_appeared_meanwhile_is_replaced_only_with_force(model, tmp_path, monkeypatch):
    path, to_markdown = tmp_path / "heat.tlmodel", model_module.to_markdown

    def beside(card):  # another has written one to the same place meanwhile
        monkeypatch.setattr(model_module, "to_markdown", to_markdown)
        model.save(path)
        return "another page"

    monkeypatch.setattr(model_module, "to_markdown", beside)
    with pytest.raises(ModelError, match="exists already"):
        model.save(path)
    assert (path / "card.md").read_text() == to_markdown(model.card)
    assert [*tmp_path.iterdir()] == [path]


def test_a_model_that_cannot_be_written_leaves_nothing(model, tmp_path):
    spoilt = Model(model.info, {"a/b": b""}, model.card)
    with pytest.raises(ModelError, match="need a plain name for a part, was 'a/b'"):
        spoilt.save(tmp_path / "m.tlmodel")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be written"):
        model.save(tmp_path / "file" / "m.tlmodel")
