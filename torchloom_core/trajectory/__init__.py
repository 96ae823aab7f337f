"""The trajectory: audit log and dataset of a run, from telemetry to outcome.

Importing this package loads nothing. The Weaver uses :mod:`~torchloom_core.trajectory.writer`;
:mod:`~torchloom_core.trajectory.reader`, :mod:`~torchloom_core.trajectory.tables` and
:mod:`~torchloom_core.trajectory.replay` read a recorded run.
"""
