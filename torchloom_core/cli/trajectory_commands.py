"""``torchloom trajectory show|replay|export``."""

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from torchloom_core.cli.options import AsJson, ConfigPath, Last
from torchloom_core.cli.output import console, print_json
from torchloom_core.cli.recorded_lines import (
    Place,
    followed,
    local_time,
    recorded,
    trajectory_root,
)
from torchloom_core.errors import ConfigError, StateError
from torchloom_core.suggest import nearest
from torchloom_core.trajectory.summaries import RECORD_KINDS, summarise
from torchloom_core.wire.codec import UNREADABLE

# The reader brings pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.trajectory.layout import Line
    from torchloom_core.trajectory.reader import Life

_UNASKED = frozenset({"tick"})

Root = Annotated[Path | None, Parameter(help="A trajectory's folder; this run's unless given.")]


def show(
    root: Root = None,
    /,
    *,
    last: Last = None,
    kind: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    worker: str | None = None,
    follow: Annotated[bool, Parameter(alias="-f", negative="")] = False,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Print what was seen, decided and done, oldest first.

    Parameters
    ----------
    last
        Only so many records.
    kind
        Only this kind of record (verdict, command_status, outcome, ...), may be repeated; all
        but tick unless given.
    worker
        Only what concerns this worker.
    follow
        Go on with what is still to come, until interrupted.
    config
        Config file; torchloom.toml in this folder unless given.
    """
    folder = trajectory_root(root, config)
    for name in kind:
        if name not in RECORD_KINDS:
            raise ConfigError(f"--kind: no record is called {name!r}{nearest(name, RECORD_KINDS)}")

    def is_wanted(line: "Line") -> bool:
        kind_fits = line.kind in kind if kind else line.kind not in _UNASKED
        return kind_fits and worker in (None, line.worker)

    printed = Place(0, 0, 0)
    recent: deque[tuple[Place, Line]] = deque(maxlen=last)
    for place, line in recorded(folder):
        printed = place
        if is_wanted(line):
            recent.append((place, line))
    for place, line in recent:
        _print(place, line, json)
    if follow:
        for place, line in followed(folder):
            if place > printed and is_wanted(line):
                _print(place, line, json)


def replay(root: Root = None, /, *, json: AsJson = False, config: ConfigPath = None) -> int:
    """Decide everything again, life by life, and see whether every output is the same.

    Exit status 1 where one is not. Needs the plugins that were active then.

    Parameters
    ----------
    config
        Config file; torchloom.toml in this folder unless given.
    """
    from torchloom_core.trajectory.reader import lives
    from torchloom_core.trajectory.replay import replay as replay_life

    same = True
    for life in lives(trajectory_root(root, config)):
        report = replay_life(life, _make_kernel)
        same = same and report.difference is None
        if json:
            print_json({"epoch": life.meta.epoch, **msgspec.to_builtins(report)})
            continue
        text = f"epoch {life.meta.epoch}: {report.inputs} inputs, {report.verdicts} verdicts, "
        if report.difference is None:
            text += f"{report.outputs} outputs, all the same"
            if report.gap is not None:
                text += f" up to a gap: inputs {report.gap.first} to {report.gap.last} are missing"
            console().print(text, markup=False)
        else:
            other = report.difference
            console().print(f"{text}then output {other.n} of input {other.seq} differs")
            recorded, replayed = other.recorded or "nothing", other.replayed or "nothing"
            console().print(f"recorded {recorded}\nreplayed {replayed}", markup=False)
    return int(not same)


def export(
    out: Path, root: Root = None, /, *, json: AsJson = False, config: ConfigPath = None
) -> None:
    """Write events.parquet and telemetry.parquet.

    Parameters
    ----------
    out
        Folder to write to.
    config
        Config file; torchloom.toml in this folder unless given.
    """
    from torchloom_core.trajectory.tables import to_tables

    paths = [str(path) for path in to_tables(trajectory_root(root, config), out)]
    if json:
        print_json(paths)
    else:
        console().print("\n".join(f"wrote {path}" for path in paths), markup=False)


def _make_kernel(life: "Life") -> Any:
    from torchloom_core.activation.activation import activate
    from torchloom_core.activation.discovery import discover
    from torchloom_core.dispatch.policy_guard import RecordedGuard
    from torchloom_core.kernel.kernel import Kernel

    plugins = activate(life.config, discover(), str(life.folder))
    return Kernel(life.config, plugins, RecordedGuard(life.overruns()))


def _summary(line: "Line", place: Place) -> str:
    try:
        return summarise(line.kind, msgspec.json.decode(line.body))
    except (*UNREADABLE, AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"epoch {place.epoch}, record {place.seq}.{place.n}"
        raise StateError(f"{where}: no {line.kind} as this version knows it: {error}") from None


def _print(place: Place, line: "Line", json: bool) -> None:
    if json:
        print_json({"epoch": place.epoch, **msgspec.structs.asdict(line)})
        return
    arrow = "→" if line.io == "out" else "←"
    text = _summary(line, place)
    console().print(
        f"[dim]{local_time(line.ts_ns)}[/] {arrow} [bold]{line.kind:<14}[/] "
        f"{escape(line.worker or '-'):<8} {escape(text)}"
    )
