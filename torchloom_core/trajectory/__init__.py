"""The trajectory: audit log and dataset of a run, from telemetry to outcome.

Importing this package loads nothing; :mod:`~torchloom_core.trajectory.writer` is the Weaver's,
:mod:`~torchloom_core.trajectory.reader`, :mod:`~torchloom_core.trajectory.tables` and
:mod:`~torchloom_core.trajectory.replay` are for whoever looks back.
"""
