import os
from pathlib import Path

import pytest

from tests.threadlet.conftest import *  # noqa: F403 - the same broker, and the Weaver's part
from tests.threadlet.torchrun_ranks import Starter

ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(request, tmp_path, join_file, end_with_sidecars, monkeypatch):
    """Start the TRAINER of the test's module; its ranks have registered the knobs ADMITTED_WITH."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    module = request.module
    starter = Starter(module.TRAINER, tmp_path, join_file, module.ADMITTED_WITH)
    yield starter
    for process in starter.started:
        end_with_sidecars(process)
