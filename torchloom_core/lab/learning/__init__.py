"""Imports for authors of predictors that learn, besides :mod:`torchloom_core.plugin`.

Features and samples of them, predictors that learn from labelled rows, scaling and seasonal
profiles, and model parts as bytes without a pickle.
"""

from torchloom_core.lab.learning.artifacts import (
    arrays_bytes,
    arrays_part,
    check_forest,
    estimator_bytes,
    estimator_part,
    json_part,
    part_of,
)
from torchloom_core.lab.learning.calibration import minimum
from torchloom_core.lab.learning.fault_columns import FaultColumns, History
from torchloom_core.lab.learning.features import Features
from torchloom_core.lab.learning.gathered_learner import FitSize, GatheredLearner, Gathering
from torchloom_core.lab.learning.ranking import Ranking
from torchloom_core.lab.learning.row_learner import RowLearner, RowOptions
from torchloom_core.lab.learning.rows import (
    Rows,
    RowSample,
    Scale,
    fill_unknown_columns,
    step_means,
)
from torchloom_core.lab.learning.seasonal_profiles import MeasuredSteps, SeasonalProfiles
from torchloom_core.lab.learning.words import Reasons, faults_in_words, in_words, known_s

__all__ = [
    "FaultColumns",
    "Features",
    "FitSize",
    "GatheredLearner",
    "Gathering",
    "History",
    "MeasuredSteps",
    "Ranking",
    "Reasons",
    "RowLearner",
    "RowOptions",
    "RowSample",
    "Rows",
    "Scale",
    "SeasonalProfiles",
    "arrays_bytes",
    "arrays_part",
    "check_forest",
    "estimator_bytes",
    "estimator_part",
    "faults_in_words",
    "fill_unknown_columns",
    "in_words",
    "json_part",
    "known_s",
    "minimum",
    "part_of",
    "step_means",
]
