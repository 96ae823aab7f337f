"""Knobs: set run-fenced parameters on all ranks at one step, or on none.

The kernel itself changes knobs back, so the message is in :mod:`torchloom_core.wire.actions`.
"""

from torchloom_core.wire.actions import ChangeKnobs as ChangeKnobs
