import json
import os

import pytest

from tests.trace.small import bundle, fault
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.checksums import changed, refuse_changed, sha256_of
from torchloom_core.lab.trace.bundle.schema import EVENTS, MANIFEST, TELEMETRY

PARQUET = f"{TELEMETRY}/000000.parquet"


@pytest.fixture
def sound(tmp_path):
    return bundle(tmp_path / "b", [fault(1)], [(1, "a", "x", 1.0)])


def test_what_was_written_is_as_the_manifest_lists_it(sound):
    assert list(changed(sound.path, sound.manifest.files)) == []
    refuse_changed(sound.path, sound.manifest.files)


@pytest.mark.parametrize("file", [EVENTS, PARQUET])
def test_a_file_that_was_changed_is_refused_in_one_line(sound, file):
    before = sha256_of(sound.path / file)
    with (sound.path / file).open("ab") as changing:
        changing.write(b"\n")
    was = sha256_of(sound.path / file)
    message = f"{sound.path / file}: need sha256 {before[:12]}..., was {was[:12]}..."
    assert list(changed(sound.path, sound.manifest.files)) == [message]
    with pytest.raises(TraceError) as refused:
        refuse_changed(sound.path, sound.manifest.files)
    assert str(refused.value) == f"{message}; the file changed after the bundle was written"


def test_a_file_that_is_gone_or_cannot_be_read_is_a_fault(sound):
    (sound.path / EVENTS).unlink()
    (sound.path / PARQUET).unlink()
    (sound.path / PARQUET).mkdir()
    assert list(changed(sound.path, sound.manifest.files)) == [
        f"{sound.path / EVENTS}: need this file of the manifest, was none",
        f"{sound.path / PARQUET}: cannot be read: Is a directory",
    ]


def test_a_name_that_is_none_of_a_file_is_a_fault_of_one_line(sound):
    (entry, *_) = sound.manifest.files.values()
    found = list(changed(sound.path, {"a\0\n": entry, "b\n": entry}))
    assert found == [
        f"{sound.path}/a\\x00\\n: cannot be read: embedded null byte",
        f"{sound.path}/b\\n: need this file of the manifest, was none",
    ]


@pytest.mark.parametrize("name", ["/dev/zero", "../other.tltrace/events.jsonl", "a/../../b"])
def test_a_name_that_leads_out_of_the_bundle_is_a_fault_and_not_read(sound, name):
    (entry, *_) = sound.manifest.files.values()
    found = list(changed(sound.path, {name: entry}))
    assert found == [f"{sound.path}: need files in the bundle, was {name!r}"]


@pytest.mark.parametrize("file", [EVENTS, PARQUET])
def test_a_pipe_is_a_fault_and_not_waited_for(sound, file):
    (sound.path / file).unlink()
    os.mkfifo(sound.path / file)
    found = list(changed(sound.path, sound.manifest.files))
    assert found == [f"{sound.path / file}: cannot be read: Not a regular file"]


def test_a_manifest_that_is_a_pipe_is_not_waited_for(sound):
    (sound.path / MANIFEST).unlink()
    os.mkfifo(sound.path / MANIFEST)
    with pytest.raises(TraceError, match=f"{MANIFEST}: cannot be read: Not a regular file"):
        Bundle.open(sound.path)


def test_the_digest_is_also_of_files_that_the_manifest_does_not_list(sound):
    manifest = json.loads((sound.path / MANIFEST).read_bytes())
    (sound.path / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))
    digests = [Bundle.open(sound.path).digest()]
    for file in (EVENTS, PARQUET):
        with (sound.path / file).open("ab") as changing:
            changing.write(b"\n")
        digests.append(Bundle.open(sound.path).digest())
    assert len(set(digests)) == 3
