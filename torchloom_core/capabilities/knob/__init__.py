"""Knob: set a run-time parameter, on one worker or on all that have it.

The kernel itself changes knobs back, so the message is in :mod:`torchloom_core.wire.actions`.
"""

from torchloom_core.wire.actions import ChangeKnob as ChangeKnob
