"""Render a report: as tables in a terminal, and as one self-contained HTML page."""

from torchloom_core.lab.evaluate.report.page import page_text
from torchloom_core.lab.evaluate.report.sweep import sweep_plot
from torchloom_core.lab.evaluate.report.tables import tables

__all__ = ["page_text", "sweep_plot", "tables"]
