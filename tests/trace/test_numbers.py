"""Telemetry becomes arrays without pandas, whose import takes longer than to read most traces."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from tests.trace.small import NODES, bundle
from torchloom_core.lab.trace.bundle.telemetry import numbers


@pytest.mark.parametrize("pieces", [[[3.5, -1.0]], [[3.5], [], [-1.0]], []])
def test_a_column_is_as_numpy_has_it(pieces):
    column = pa.chunked_array([pa.array(piece, pa.float64()) for piece in pieces], pa.float64())
    assert numbers(column).tolist() == [value for piece in pieces for value in piece]
    assert numbers(column).dtype == np.float64


def test_truths_are_truths_in_any_part_of_a_column():
    truths = [True, False, False, True, True, False, True, True, True, False]
    column = pa.chunked_array([pa.array(truths)]).slice(3)
    assert numbers(column).tolist() == truths[3:]
    assert numbers(column).dtype == np.bool_


READ = """
import sys
from pathlib import Path
from torchloom_core.lab.fitting.feasibility import sample_interval_s
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.recorded_values import recorded_values
from torchloom_core.lab.trace.feed.feed import Feed

bundle = Bundle.open(Path(sys.argv[1]))
middle_ns = (bundle.manifest.start_ns + bundle.manifest.end_ns) // 2
sample_interval_s(bundle), recorded_values(bundle, middle_ns)
list(Feed(bundle, tick_s=1.0, repair_s=1.0, start_ns=middle_ns, metrics=["x"]))
print("pandas" in sys.modules)
"""


@pytest.mark.integration
def test_reading_telemetry_does_not_import_pandas(tmp_path):
    samples = [(t_s, "a", metric, 1.0) for t_s in range(20) for metric in "xy"]
    trace = bundle(tmp_path / "b", NODES, samples, seconds=20.0)
    words = [sys.executable, "-c", READ, str(trace.path)]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
