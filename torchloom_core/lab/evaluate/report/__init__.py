"""Render a report: as tables in a terminal, and as one self-contained HTML page."""
