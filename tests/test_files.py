import os

from torchloom_core.files import write_whole


def test_two_that_write_one_file_at_once_are_not_in_each_others_way(tmp_path, monkeypatch):
    replace = os.replace

    def beside(part, path):  # another process has written the same file meanwhile
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 7)
        write_whole(path, b"theirs")
        replace(part, path)

    monkeypatch.setattr(os, "replace", beside)
    write_whole(tmp_path / "run.json", b"ours")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("run.json", b"ours")
    ]
