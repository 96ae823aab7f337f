"""The tests for all storages of checkpoints; a storage's own tests subclass them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO, ClassVar

from torchloom_core.checkpoints.storage import Storage

_FOLDER = "0001-step-0000000010-0123abcd"


class StorageContract:
    """Subclass it as ``class TestMyStorage(StorageContract)`` and pytest runs it.

    Attributes
    ----------
    large_bytes : int
        The size of a file that the storage sends in several pieces, if it does that.

    Examples
    --------
    >>> from contextlib import contextmanager
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from torchloom_core.checkpoints.storage import LocalFolder
    >>> from torchloom_core.testing import StorageContract
    >>> class TestLocalFolder(StorageContract):
    ...     @contextmanager
    ...     def new_place(self):
    ...         with TemporaryDirectory() as folder:
    ...             yield lambda: LocalFolder(Path(folder) / "run-7")
    >>> TestLocalFolder().test_a_file_is_read_as_it_was_written()
    """

    large_bytes: ClassVar[int] = 1 << 20

    def new_place(self) -> AbstractContextManager[Callable[[], Storage]]:
        """Give a function that opens a new, empty place, each time as another process would."""
        raise NotImplementedError

    def test_an_empty_place_has_nothing(self) -> None:
        """Check that nothing has to be made before a place is listed."""
        with self.new_place() as opened:
            storage = opened()
            assert storage.name, "need a name that the user knows, was none"
            assert list(storage.folders()) == [], "need no folders in an empty place"
            assert list(storage.files(_FOLDER)) == [], "need no files in a folder that is not there"

    def test_a_file_is_read_as_it_was_written(self) -> None:
        """Check all kinds of parts, an empty file, and one of ``large_bytes``."""
        large = _content(self.large_bytes)
        cases: dict[str, list[bytes | memoryview]] = {
            "empty": [],
            "of-empty-parts": [b"", memoryview(b"")],
            "of-many-parts": [b"ab", b"", memoryview(bytearray(b"-cd-"))[1:3], b"e"],
            "of-whole-blocks": [large[:8192], large[8192:12289], large[12289:20481]],
            "large": [memoryview(large)[: len(large) // 3], memoryview(large)[len(large) // 3 :]],
        }
        with self.new_place() as opened:
            for name, parts in cases.items():
                opened().write(f"{_FOLDER}/{name}", iter(parts))
            for name, parts in cases.items():
                found = _read(opened(), f"{_FOLDER}/{name}")
                assert found == b"".join(parts), f"need the bytes of {name!r}, was different"

    def test_a_part_of_a_file_is_read_by_its_place(self) -> None:
        """Check ``seek`` and ``readinto``, by several threads at once, and past the end."""
        content = _content(self.large_bytes)

        def read(at: int) -> bytes:
            into = bytearray(1000)
            with storage.open(f"{_FOLDER}/a") as file:
                file.seek(at)
                count = _fill(file, memoryview(into))
            return bytes(into[:count])

        with self.new_place() as opened:
            opened().write(f"{_FOLDER}/a", [content])
            storage = opened()
            places = [0, len(content) // 2, 1, len(content) - 10, len(content)]
            with ThreadPoolExecutor(len(places)) as threads:
                for at, found in zip(places, threads.map(read, places), strict=True):
                    assert found == content[at : at + 1000], f"need the bytes at {at}"

    def test_what_was_just_written_is_listed_elsewhere(self) -> None:
        """Check that another process, which has listed the place before, sees a new file."""
        with self.new_place() as opened:
            storage, other = opened(), opened()
            for number in range(3):
                expected = {f"rank-{rank}.json" for rank in range(number)}
                assert set(other.files(_FOLDER)) == expected, "need a list without caches"
                storage.write(f"{_FOLDER}/rank-{number}.json", [b"{}"])
            assert list(other.folders()) == [_FOLDER], "need the new folder in the list"

    def test_a_file_is_not_seen_before_it_is_whole(self) -> None:
        """Check the list, and ``open``, while a file is being written."""
        with self.new_place() as opened:
            storage, other = opened(), opened()

            def parts() -> Iterator[bytes]:
                yield _content(self.large_bytes)
                assert list(other.files(_FOLDER)) == [], "need no file before it is whole"
                _need_oserror(lambda: _read(other, f"{_FOLDER}/a"), "a file that is not whole")
                yield b"end"

            storage.write(f"{_FOLDER}/a", parts())
            assert list(other.files(_FOLDER)) == ["a"], "need the file once it is whole"

    def test_a_write_that_fails_leaves_nothing_that_counts(self) -> None:
        """Check that its error is raised, no file is listed, and the next write works."""
        with self.new_place() as opened:
            storage = opened()

            def parts() -> Iterator[bytes]:
                yield _content(self.large_bytes)
                raise OSError("the parts end here")

            _need_oserror(lambda: storage.write(f"{_FOLDER}/a", parts()), "parts that fail")
            assert list(opened().files(_FOLDER)) == [], "need no file after a write that failed"
            storage.write(f"{_FOLDER}/a", [b"whole"])
            assert _read(opened(), f"{_FOLDER}/a") == b"whole", "need the file of the next write"

    def test_a_missing_file_is_an_oserror(self) -> None:
        """Check a file that is missing, in a folder and in none."""
        with self.new_place() as opened:
            storage = opened()
            storage.write(f"{_FOLDER}/a", [b"1"])
            for name in (f"{_FOLDER}/b", f"{_FOLDER}/a/b", "no-folder/a"):
                _need_oserror(lambda name=name: _read(storage, name), name)  # type: ignore[misc]

    def test_a_folder_is_removed_with_its_files_and_no_other(self) -> None:
        """Check it beside a folder whose name begins with the same characters."""
        with self.new_place() as opened:
            storage = opened()
            for folder in ("step-1", "step-10", "step-2"):
                for file in ("a", "b"):
                    storage.write(f"{folder}/{file}", [folder.encode()])
            storage.remove("step-1")
            assert sorted(opened().folders()) == ["step-10", "step-2"], "need the others to stay"
            assert list(opened().files("step-1")) == [], "need no files in a removed folder"
            assert sorted(opened().files("step-10")) == ["a", "b"], "need the others' files"
            storage.write("step-1/a", [b"again"])
            assert list(opened().files("step-1")) == ["a"], "need the new file alone"

    def test_a_name_is_no_pattern(self) -> None:
        """Check names with characters that mean something in a pattern, a URL or a shell."""
        with self.new_place() as opened:
            storage = opened()
            names = ["a[1]", "a1", "a*", "ab", "a?", "a {1}", "a%201", "a#1", "ä"]
            for name in names:
                storage.write(f"{name}/{name}", [name.encode()])
            assert sorted(storage.folders()) == sorted(names), "need the names as they were given"
            for name in names:
                assert list(storage.files(name)) == [name], f"need the file of {name!r} alone"
                assert _read(storage, f"{name}/{name}") == name.encode(), f"need that of {name!r}"
            for name in ("a[1]", "a*", "a?"):
                storage.remove(name)
            left = sorted(set(names) - {"a[1]", "a*", "a?"})
            assert sorted(storage.folders()) == left, "need only the named folders removed"

    def test_one_saves_at_a_time_or_there_is_no_lock(self) -> None:
        """Check that the other one is named, and that the lock ends with ``unlock``."""
        with self.new_place() as opened:
            one, two = opened(), opened()
            for _ in range(2):
                assert one.lock("job one") == "", "need the lock of an empty place"
            assert two.lock("job two") in ("", "job one"), "need the name of the one that saves"
            one.unlock()
            assert two.lock("job two") == "", "need the lock once the other one is gone"
            two.unlock()


def _content(count: int) -> bytes:
    """Return ``count`` bytes that differ from place to place."""
    block = bytes(range(251))
    return (block * (count // len(block) + 1))[:count]


def _read(storage: Storage, name: str) -> bytes:
    with storage.open(name) as file:
        return file.read()


def _fill(file: BinaryIO, view: memoryview) -> int:
    """Read into a view until it is full or the file ends; return the number of bytes."""
    at = 0
    while at < len(view) and (count := file.readinto(view[at:])):  # type: ignore[attr-defined]
        at += count
    return at


def _need_oserror(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except OSError:
        return
    raise AssertionError(f"need an OSError for {what}, was none")
