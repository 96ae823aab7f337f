"""The tests for all importers; an importer's own tests subclass them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from torchloom_core.floor.errors import TorchloomError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Manifest
from torchloom_core.lab.trace.validation.validate import validate


class ImporterContract:
    """Subclass it as ``class TestMyImporter(ImporterContract)`` and pytest runs it.

    Attributes
    ----------
    importer : callable
        The function that the entry point names.
    options : dict
        Its own options.

    Examples
    --------
    >>> from torchloom_core.lab.trace import BundleWriter, Event
    >>> from torchloom_core.testing import ImporterContract
    >>> def import_reboots(source, out, *, name="", force=False):
    ...     times = [int(line) for line in source.read_text().split()]
    ...     with BundleWriter(
    ...         out, name=name or out.stem, start_ns=0, end_ns=max(times), source=source.name,
    ...         licence="", synthetic=False, force=force,
    ...     ) as bundle:
    ...         for t in times:
    ...             event = Event(id=f"e{t}", t_event=t, t_avail=t, component="n1", kind="reboot")
    ...             bundle.add(event)
    >>> class TestReboots(ImporterContract):
    ...     importer = import_reboots
    ...
    ...     def write_source(self, folder):
    ...         (folder / "reboots.txt").write_text("3 9")
    ...         return folder / "reboots.txt"
    >>> TestReboots().test_it_writes_a_valid_bundle()
    >>> TestReboots().test_it_names_the_trace_and_its_source()
    Traceback (most recent call last):
    AssertionError: need the licence of the data, or that it is not stated
    """

    importer: ClassVar[Callable[..., None]]
    options: ClassVar[Mapping[str, Any]] = {}

    def write_source(self, folder: Path) -> Path:
        """Write a small source into ``folder``, and return the path that is imported."""
        raise NotImplementedError

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Return a new folder, removed at the end."""
        with TemporaryDirectory() as name:
            yield Path(name)

    def imported(self, folder: Path, **options: Any) -> Manifest:
        """Import the source to ``folder / "out.tltrace"``, and return the bundle's manifest."""
        source = self.write_source(folder)
        type(self).importer(source, folder / "out.tltrace", **{**self.options, **options})
        return Bundle.open(folder / "out.tltrace").manifest

    def test_it_writes_a_valid_bundle(self) -> None:
        """Check the bundle as ``torchloom trace validate`` does, and that it has events."""
        with self.folder() as folder:
            manifest = self.imported(folder)
            faults = validate(folder / "out.tltrace").faults
            assert not faults, [fault.removeprefix(f"{folder}/") for fault in faults]
            assert manifest.files["events.jsonl"].rows, "need events in the bundle, was none"

    def test_it_names_the_trace_and_its_source(self) -> None:
        """Check that ``name`` is used, and that source and licence are stated."""
        with self.folder() as folder:
            assert self.imported(folder).name, "need a name by default, was none"
            manifest = self.imported(folder, name="other", force=True)
            assert manifest.name == "other", f"need the name of the option, was {manifest.name!r}"
            assert manifest.source, "need the source of the data, was none"
            assert manifest.licence, "need the licence of the data, or that it is not stated"

    def test_the_same_source_gives_the_same_bundle(self) -> None:
        """Check the checksums of two bundles."""
        with self.folder() as one, self.folder() as two:
            assert self.imported(one) == self.imported(two), "need the same bundle, was different"

    def test_an_existing_bundle_is_replaced_only_by_force(self) -> None:
        """Check ``force``."""
        with self.folder() as folder:
            self.imported(folder)
            _need_error(partial(self.imported, folder), "an existing bundle")
            self.imported(folder, force=True)

    def test_a_missing_source_is_one_line_and_leaves_nothing(self) -> None:
        """Check that the error is a TraceError or an OSError, not a bug's traceback."""
        with self.folder() as folder:
            out = folder / "out.tltrace"
            run = partial(type(self).importer, folder / "absent", out, **self.options)
            _need_error(run, "a missing source")
            left = sorted(path.name for path in folder.iterdir())
            assert not left, f"need no file of a failed import, was {', '.join(left)}"


def _need_error(action: Callable[[], object], what: str) -> None:
    """Fail unless the command line can show the error of ``action`` as one line."""
    try:
        action()
    except (TorchloomError, OSError):
        return
    raise AssertionError(f"need a TraceError for {what}, was none")
