"""A synthetic trace of bandwidth is what its parameters say."""

import numpy as np
import pytest
from cyclopts import App

from torchloom_core.cli.trace_make_commands import bandwidth as command
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.lab.simulate.links import links_of
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.synthetic.trace import BandwidthParameters, synthesize_bandwidth
from torchloom_core.lab.trace.validation.validate import validate


def made(path, **fields):
    synthesize_bandwidth(path, BandwidthParameters(**fields))
    return Bundle.open(path)


def links(bundle):
    """Return ``(workers, samples)`` in Mbit/s."""
    (table,) = bundle.telemetry()
    values = table["value"].to_numpy() / 125_000
    return values.reshape(-1, len(bundle.measured)).T


@pytest.mark.parametrize("shape", ["steps", "sinus", "failing"])
def test_it_is_sound_and_the_same_seed_gives_the_same_bytes(tmp_path, shape):
    fields = {"shape": shape, "jitter": 0.1, "unequal": 0.2, "seed": 3}
    bundle = made(tmp_path / "1" / "x.tltrace", **fields)
    assert validate(bundle.path).faults == ()
    assert made(tmp_path / "2" / "x.tltrace", **fields).digest() == bundle.digest()
    assert made(tmp_path / "3" / "x.tltrace", **{**fields, "seed": 4}).digest() != bundle.digest()


def test_steps_hold_each_level_and_begin_again(tmp_path):
    bundle = made(tmp_path / "x.tltrace", mbit_per_s=(800.0, 40.0), hold_s=5.0, duration_s=15.0)
    assert links(bundle).tolist() == 4 * [[800.0] * 5 + [40.0] * 5 + [800.0] * 5]
    assert links_of(bundle).bottleneck.at_s == (0.0, 5.0, 10.0)


def test_a_sinus_goes_from_the_largest_to_the_least_and_back(tmp_path):
    bundle = made(
        tmp_path / "x.tltrace", shape="sinus", mbit_per_s=(1000.0, 10.0), hold_s=10.0,
        duration_s=21.0,
    )  # fmt: skip
    line = links(bundle)[0]
    assert line[[0, 5, 10, 20]] == pytest.approx([1000.0, 100.0, 10.0, 1000.0])


def test_of_a_failing_link_the_others_know_nothing(tmp_path):
    bundle = made(
        tmp_path / "x.tltrace", shape="failing", mbit_per_s=(1000.0, 1.0, 7.0), duration_s=100.0
    )
    lines = links(bundle)
    assert (lines[:-1] == 1000.0).all()
    assert (np.diff(lines[-1]) < 0).all()
    assert lines[-1][50] == pytest.approx(1000**0.5)


def test_links_may_differ_for_good_and_from_value_to_value(tmp_path):
    lines = links(made(tmp_path / "x.tltrace", mbit_per_s=(100.0,), unequal=0.5, jitter=0.05))
    assert np.ptp(lines.mean(axis=1)) > 20.0
    assert np.log(lines).std(axis=1) == pytest.approx(0.05, rel=0.25)


def test_the_command_takes_levels_and_refuses_what_is_none(tmp_path, capsys):
    app = App(default_command=command, result_action="return_value")
    words = ["x.tltrace", "--mbit-per-s", "500", "--mbit-per-s", "50", "--hold-s", "2"]
    out = tmp_path / "x.tltrace"
    app([str(out), *words[1:], "--duration-s", "4", "--workers", "2"])
    assert links(Bundle.open(out)).tolist() == 2 * [[500.0, 500.0, 50.0, 50.0]]
    assert "8 rows" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="bandwidth: mbit_per_s"):
        app([str(tmp_path / "y.tltrace"), "--mbit-per-s", "-5"])


def test_too_many_values_are_refused(tmp_path):
    with pytest.raises(TraceError, match="need at most 50,000,000 values"):
        made(tmp_path / "x.tltrace", duration_s=1e8)
