"""Compression of allreduce, in a process group around torchft's; it needs torch and torchft."""

from torchloom_threadlet.compression.figures import Figures
from torchloom_threadlet.compression.knobs import allreduce_knobs
from torchloom_threadlet.compression.modes import MODES
from torchloom_threadlet.compression.process_group import CompressedProcessGroup

__all__ = ["MODES", "CompressedProcessGroup", "Figures", "allreduce_knobs"]
