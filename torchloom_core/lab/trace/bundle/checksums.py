"""Compare the files of a bundle with the SHA-256 checksums in its manifest.

A bundle's digest identifies its content only if they agree: call :func:`refuse_changed` before a
result is stored under the digest or a model learns from the bundle.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.floor.plain_text import printable
from torchloom_core.lab.trace.bundle.schema import FileEntry


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits; OSError if it cannot be read."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed(folder: Path, files: Mapping[str, FileEntry]) -> Iterator[str]:
    """Yield a fault for each file that differs from its checksum; reads all files."""
    for name, entry in sorted(files.items()):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            yield f"{folder}: need files in the bundle, was {name!r}"
            continue
        place = printable(str(folder / name))
        try:
            was = sha256_of(folder / name)
        except FileNotFoundError:
            yield f"{place}: need this file of the manifest, was none"
        except OSError as error:
            yield f"{place}: cannot be read: {error.strerror}"
        except ValueError as error:  # not a file name, such as one with a NUL
            yield f"{place}: cannot be read: {error}"
        else:
            if was != entry.sha256:
                yield (f"{place}: need sha256 {printable(entry.sha256[:12])}..., was {was[:12]}...")


def refuse_changed(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Raise a TraceError for the first file that differs from its checksum."""
    for fault in changed(folder, files):
        raise TraceError(f"{fault}; the file changed after the bundle was written")
