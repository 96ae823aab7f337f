"""A folder keeps checkpoints as every storage must, and the contract finds one that does not."""

import errno
import fcntl
import mmap
import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.testing.rules import broken_rules
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.testing import StorageContract


@contextmanager
def folder(kind):
    with TemporaryDirectory() as path:
        yield lambda: kind(Path(path) / "run-7")


class TestLocalFolder(StorageContract):
    def new_place(self):
        return folder(LocalFolder)


class InPlace(LocalFolder):
    def write(self, name, parts):
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        with (self.path / name).open("wb", buffering=0) as file:
            for part in parts:
                file.write(part)


class Remembering(LocalFolder):
    def files(self, folder):
        known = self.__dict__.setdefault("known", {})
        return known.setdefault(folder, super().files(folder))


class ByPattern(LocalFolder):
    def remove(self, folder):
        for found in self.path.glob(folder):
            super().remove(found.name)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (InPlace, {"a_file_is_not_seen_before_it_is_whole"}),
        (InPlace, {"a_write_that_fails_leaves_nothing_that_counts"}),
        (Remembering, {"what_was_just_written_is_listed_elsewhere"}),
        (ByPattern, {"a_name_is_no_pattern"}),
    ],
)
def test_the_contract_finds_a_storage_that_breaks_a_rule(kind, broken):
    found = broken_rules(StorageContract, new_place=lambda self: folder(kind))
    assert {f"test_{name}" for name in broken} <= found


def test_where_the_disk_wants_other_blocks_the_file_is_written_through_the_page_cache(
    tmp_path, monkeypatch
):
    direct, write = [], os.write

    def refuse_direct(handle, data):
        direct.append(bool(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT))
        if direct[-1]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(handle, data)

    content = mmap.mmap(-1, 1 << 16)
    content.write(os.urandom(1 << 16))
    monkeypatch.setattr(os, "write", refuse_direct)
    LocalFolder(tmp_path).write("f/one", [memoryview(content)])
    assert direct == [True, False]
    assert (tmp_path / "f" / "one").read_bytes() == content[:]
