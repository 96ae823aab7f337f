"""Pipelines whose stages may be lost: the worker's side."""
