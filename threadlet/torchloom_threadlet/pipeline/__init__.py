"""Pipelines whose stages may be lost: the worker's side."""

from torchloom_threadlet.pipeline.pipeline import Pipeline, attach

__all__ = ["Pipeline", "attach"]
