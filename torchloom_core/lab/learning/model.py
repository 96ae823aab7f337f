"""A fitted predictor on disk, ``NAME.tlmodel/``: its parts and its model card.

::

    NAME.tlmodel/
    ├── model.json    predictor, options and settings, and checksums of all files
    ├── parts/*       the predictor's own files
    ├── card.json     the model card
    └── card.md       the same as a page

It contains no code and no pickle.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from torchloom_core.config.faults import broken_rule
from torchloom_core.floor.atomic_folder import AtomicFolder, clear_abandoned
from torchloom_core.floor.errors import ModelError
from torchloom_core.floor.files import open_regular, refuse_unwritable
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.card import Card, to_markdown
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import Int64

SCHEMA_VERSION = 3
SUFFIX = ".tlmodel"

_LONGEST_NAME = 255
"""Bytes, in common file systems."""
_MODEL, _CARD, _CARD_PAGE, _PARTS = "model.json", "card.json", "card.md", "parts"


_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``model.json``.

    Attributes
    ----------
    tick_s, every_s, horizon_s, repair_s : float
        Spacing of its samples, forecast interval, horizon, and shortest outage after a failure with
        an unknown end.
    """

    predictor: str
    package: str
    version: str
    options: dict[str, Any]
    """All of its options, with defaults."""
    task: Literal["forecast", "detect"]
    lead_s: _NotNegative
    kinds: tuple[str, ...]
    tick_s: _Positive
    repair_s: _NotNegative
    every_s: _Positive
    horizon_s: _Positive
    calibration: Calibration
    threshold: float
    """Least calibrated probability that raises an alarm."""
    threshold_from: str
    false_alarms_per_node_day: _NotNegative
    until_ns: Int64
    """End of training: anything that became known later was not used."""
    event_prints: tuple[str, ...]
    values: tuple[tuple[str, float], ...]
    """Fingerprints of the trace's failures and telemetry up to there."""
    seed: Annotated[int, msgspec.Meta(ge=0)]
    files: dict[str, str] = {}
    """SHA-256 of the card and of each part."""
    known_before: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Inputs declared as known beforehand, which were not checked for leaks."""
    sha256: str = ""
    """Of all other fields, to find edits."""
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Model:
    """A fitted predictor: its parts, if it learns, its card, and the settings to make it again."""

    info: ModelInfo
    parts: Mapping[str, bytes]
    card: Card

    @property
    def digest(self) -> str:
        """SHA-256 over all files but ``card.md``."""
        return _sha256(_encode(self._sealed))

    @property
    def _sealed(self) -> ModelInfo:
        files = {f"{_PARTS}/{name}": _sha256(data) for name, data in sorted(self.parts.items())}
        info = msgspec.structs.replace(
            self.info, files={_CARD: _sha256(_encode(self.card)), **files}, sha256=""
        )
        return msgspec.structs.replace(info, sha256=_sha256(_encode(info)))

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write the folder atomically; ``force`` replaces a model, and nothing else."""
        refuse_place(path, force=force)
        try:
            with _new_folder(path, force=force) as folder:
                (folder / _PARTS).mkdir()
                for name, data in self.parts.items():
                    (folder / _PARTS / _plain(name, path)).write_bytes(data)
                (folder / _CARD).write_bytes(_encode(self.card))
                (folder / _CARD_PAGE).write_text(to_markdown(self.card), encoding="utf-8")
                (folder / _MODEL).write_bytes(_encode(self._sealed))
        except OSError as error:
            raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: Path) -> "Model":
        """Read the folder; ModelError if a part is missing or changed, or the card is another's."""
        if not path.is_dir():
            raise ModelError(
                f"{path}: need a model, was {'a file' if path.exists() else 'nothing'}"
            )
        info = _read_info(path / _MODEL)
        read = {
            name: _read_checked(path / _plain(name, path), sha) for name, sha in info.files.items()
        }
        try:
            card = msgspec.json.decode(read.pop(_CARD), type=Card)
        except (KeyError, *UNREADABLE) as error:
            raise ModelError(f"{path / _CARD}: need a model's card: {error}") from None
        _refuse_other_card(path, info, card)
        parts = {name.removeprefix(f"{_PARTS}/"): data for name, data in read.items()}
        return cls(msgspec.structs.replace(info, files={}, sha256=""), parts, card)


def refuse_place(path: Path, *, force: bool) -> None:
    """Raise ModelError if no model may be written there, once abandoned folders are removed."""
    if path.suffix != SUFFIX:
        raise ModelError(f"{path}: need the suffix {SUFFIX}, was {path.suffix or 'none'}")
    clear_abandoned(path)
    if path.exists() and not force:
        raise ModelError(f"{path}: exists already; use --force to replace it")
    if path.exists() and not (path / _MODEL).is_file():
        raise ModelError(f"{path}: --force replaces only models, and this is none")
    refuse_unwritable(path, ModelError)


def _read_info(place: Path) -> ModelInfo:
    try:
        table = msgspec.json.decode(_read(place), type=dict[str, Any])
    except FileNotFoundError:
        raise ModelError(f"{place.parent}: need a file {_MODEL}, was none") from None
    except OSError as error:
        raise ModelError(f"{place}: cannot be read: {error.strerror}") from None
    except UNREADABLE as error:
        raise ModelError(f"{place}: need a JSON object: {error}") from None
    if table.get("schema") != SCHEMA_VERSION:
        raise ModelError(f"{place}: need schema {SCHEMA_VERSION}, was {table.get('schema')!r}")
    try:
        info = msgspec.convert(table, ModelInfo)
    except msgspec.ValidationError as error:
        raise ModelError(broken_rule(str(place), table, ModelInfo, error)) from None
    was = _sha256(_encode(msgspec.structs.replace(info, sha256="")))
    if was != info.sha256:
        raise ModelError(f"{place}: need SHA-256 {info.sha256[:12]}, was {was[:12]}")
    return info


def _refuse_other_card(path: Path, info: ModelInfo, card: Card) -> None:
    """Raise ModelError if model and card contradict each other."""
    score = card.score
    for what, own, on_card in (
        ("predictor", info.predictor, card.predictor),
        ("until_ns", info.until_ns, card.until_ns),
        ("task", info.task, score.task),
        ("horizon_s", info.horizon_s, score.horizon_s),
        ("lead_s", info.lead_s, score.lead_s),
        ("threshold", info.threshold, score.threshold),
    ):
        if own != on_card:
            raise ModelError(
                f"{path}: need {what} {on_card!r} in {_MODEL}, as in {_CARD}, was {own!r}"
            )


def _read_checked(place: Path, sha256: str) -> bytes:
    try:
        data = _read(place)
    except OSError as error:
        raise ModelError(f"{place}: cannot be read: {error.strerror}") from None
    if _sha256(data) != sha256:
        raise ModelError(f"{place}: need SHA-256 {sha256[:12]}, was {_sha256(data)[:12]}")
    return data


def _read(place: Path) -> bytes:
    with open_regular(place) as file:
        return file.read()


def is_plain(name: str) -> bool:
    """Return whether a part can have this file name."""
    too_long = len(name.encode(errors="replace")) > _LONGEST_NAME
    leads_out = name in ("", ".", "..") or "/" in name or "\\" in name
    return not (too_long or leads_out) and name.isprintable()


def _plain(name: str, path: Path) -> str:
    """Return a file name in the folder; ModelError if it is invalid or leads out of the folder."""
    if not is_plain(name.removeprefix(f"{_PARTS}/")):
        raise ModelError(f"{path}: need a plain name for a part, was {name!r}")
    return name


@contextmanager
def _new_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder beside ``path`` that replaces it if the block raises no error."""
    atomic = AtomicFolder(path)
    try:
        yield atomic.folder
        refuse_place(path, force=force)  # the path may exist by now
        atomic.put_in_place(replace=force)
    finally:
        atomic.discard()


def _encode(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
