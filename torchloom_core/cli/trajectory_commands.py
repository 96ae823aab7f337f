"""``torchloom trajectory show|replay``."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from torchloom_core.cli.options import AsJson, ConfigPath, Last, Several
from torchloom_core.cli.output import console, print_json
from torchloom_core.cli.recorded_lines import Place, Root, local_time, selected, trajectory_root
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.suggest import nearest
from torchloom_core.live.trajectory.summaries import RECORD_KINDS, summarise
from torchloom_core.wire.codec import UNREADABLE

# The reader imports pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.live.trajectory.layout import Line
    from torchloom_core.live.trajectory.reader import EpochRecord

_HIDDEN = frozenset({"tick"})


def show(
    root: Root = None,
    /,
    *,
    last: Last = None,
    kind: Several = (),
    worker: str | None = None,
    follow: Annotated[bool, Parameter(alias="-f", negative="")] = False,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Print a run's records: events, decisions and commands, oldest first.

    Parameters
    ----------
    last
        Print only this many of the newest records.
    kind
        Print only this kind of record (verdict, command_status, outcome, ...), may be repeated.
        Default: all but tick.
    worker
        Print only records of this worker.
    follow
        Keep printing new records until interrupted.
    """
    folder = trajectory_root(root, config)
    for name in kind:
        if name not in RECORD_KINDS:
            raise ConfigError(f"--kind: unknown record kind {name!r}{nearest(name, RECORD_KINDS)}")

    def is_wanted(line: "Line") -> bool | None:
        kind_fits = line.kind in kind if kind else line.kind not in _HIDDEN
        return (kind_fits and worker in (None, line.worker)) or None

    for place, line, _ in selected(folder, is_wanted, last, follow):
        _print(place, line, json)


def replay(root: Root = None, /, *, json: AsJson = False, config: ConfigPath = None) -> int:
    """Replay the inputs of each Weaver process, and check that every output is the same.

    Exit status 1 if an output differs. Needs the plugins that were active in the run.
    """
    from torchloom_core.live.trajectory.reader import read_epochs
    from torchloom_core.live.trajectory.replay import replay as replay_record

    same = True
    for record in read_epochs(trajectory_root(root, config)):
        report = replay_record(record, _make_kernel)
        same = same and report.difference is None
        if json:
            print_json({"epoch": record.meta.epoch, **msgspec.to_builtins(report)})
            continue
        text = f"epoch {record.meta.epoch}: {report.inputs} inputs, {report.verdicts} verdicts, "
        if report.difference is None:
            text += f"{report.outputs} outputs, all the same"
            if report.gap is not None:
                text += f" up to a gap: inputs {report.gap.first} to {report.gap.last} are missing"
            if report.missing:
                text += f" up to input {report.inputs + 1}: {report.missing}"
            console().print(text, markup=False)
        else:
            other = report.difference
            console().print(f"{text}then output {other.n} of input {other.seq} differs")
            recorded, replayed = other.recorded or "nothing", other.replayed or "nothing"
            console().print(f"recorded {recorded}\nreplayed {replayed}", markup=False)
    return int(not same)


def _make_kernel(record: "EpochRecord") -> Any:
    from torchloom_core.lab.activation.activation import activate
    from torchloom_core.lab.activation.discovery import discover
    from torchloom_core.live.dispatch.policy_guard import RecordedGuard
    from torchloom_core.live.kernel.kernel import Kernel

    plugins = activate(record.config, discover(), str(record.folder))
    return Kernel(record.config, plugins, RecordedGuard(record.overruns()))


def _summary(line: "Line", place: Place) -> str:
    try:
        return summarise(line.kind, msgspec.json.decode(line.body))
    except (*UNREADABLE, AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"epoch {place.epoch}, record {place.seq}.{place.n}"
        raise StateError(f"{where}: this version cannot read the {line.kind}: {error}") from None


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
