"""The trajectory: audit log and dataset of a run, from telemetry to outcome.

Importing this package loads nothing. The Weaver uses :mod:`~torchloom_core.live.trajectory.writer`;
:mod:`~torchloom_core.live.trajectory.reader`, :mod:`~torchloom_core.live.trajectory.tables` and
:mod:`~torchloom_core.live.trajectory.replay` read a recorded run.
"""
