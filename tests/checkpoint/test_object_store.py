"""A URL names an object store, which keeps checkpoints as every storage must."""

import sys
from contextlib import contextmanager

import pytest

from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.floor.errors import CheckpointError
from torchloom_core.testing import StorageContract


class TestMemory(StorageContract):
    @contextmanager
    def new_place(self):
        url = "memory://runs/run-7"
        yield lambda: storage_at(url)
        storage = storage_at(url)
        for folder in storage.folders():
            storage.remove(folder)


def test_a_url_of_files_is_a_folder(tmp_path):
    assert storage_at(f"file://{tmp_path}/run-7").path == tmp_path / "run-7"


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("memory://", "need a bucket, as in memory://bucket/run-7"),
        ("nothing://bucket/run-7", "Protocol not known: nothing"),
    ],
)
def test_a_url_that_cannot_be_is_one_line(url, line):
    with pytest.raises(CheckpointError) as refused:
        storage_at(url)
    assert str(refused.value) == f"{url}: {line}"


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules, "torchloom_core.checkpoints.bounded_s3", raising=False)
    with pytest.raises(CheckpointError) as refused:
        storage_at("s3://b/run-7")
    need = 'need the extra object-store: pip install "torchloom[object-store]"'
    assert str(refused.value) == f"s3://b/run-7: {need}"
