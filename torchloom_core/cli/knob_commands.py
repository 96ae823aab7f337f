"""``torchloom knob list|get|set|unset|take|drop``."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from torchloom_core.cli.options import AsJson, Connection, Wait
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.weaver_client import act, ask_knobs, open_client
from torchloom_core.errors import ConfigError, RequestError
from torchloom_core.plain_text import printable
from torchloom_core.suggest import nearest
from torchloom_core.wire.actions import Guard
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import KnobDesired
from torchloom_core.wire.knobs import find_spec
from torchloom_core.wire.messages import KnobSpec, KnobValue
from torchloom_core.wire.operator import KnobSet, KnobTable, KnobUnset

_HERE = Connection()

_value_decoder: msgspec.json.Decoder[KnobValue] = msgspec.json.Decoder(KnobValue)


def list_knobs(*, json: AsJson = False, connection: Connection = _HERE) -> None:
    """List all knobs: what they take, what they should be, and what they are."""
    table = asyncio.run(_knobs(connection))
    if json:
        print_json(table)
        return
    rows = Table("knob", "takes", "fence", "wanted", "is", "meaning", box=None)
    for spec in table.specs:
        rows.add_row(
            escape(spec.name),
            escape(_range(spec)),
            spec.fence,
            escape(_wanted(table, spec.name)),
            escape(_present(_values(table, spec.name))),
            escape(spec.doc),
        )
    known = {spec.name for spec in table.specs}
    for name in sorted({desired.knob for desired in table.desired} - known):
        rows.add_row(
            escape(name), "", "", escape(_wanted(table, name)), "-", "no worker has it now"
        )
    console().print(rows)
    if table.left_out:
        warn(f"{table.left_out} more knobs are not listed: they do not fit an answer")


def get_knob(
    name: str,
    /,
    *,
    worker: str | None = None,
    json: AsJson = False,
    connection: Connection = _HERE,
) -> None:
    """Show one knob on every worker that has it, or on one.

    Parameters
    ----------
    name
        The knob.
    worker
        Only this worker's value.
    """
    table = asyncio.run(_knobs(connection))
    spec = find_spec(name, table.specs)
    values = _values(table, name)
    if worker is not None:
        if worker not in values:
            raise RequestError(f"no worker {worker!r} has knob {name}{nearest(worker, values)}")
        values = {worker: values[worker]}
    if json:
        print_json({"spec": spec, "wanted": _desired(table, name), "values": values})
    elif worker is not None:
        console().print(_shown(values[worker]), markup=False)
    else:
        console().print(f"{name} takes {_range(spec)}, wanted {_wanted(table, name)}", markup=False)
        for owner, value in values.items():
            console().print(f"{owner} {_shown(value)}", markup=False)


def set_knob(
    *what: Annotated[str, Parameter(allow_leading_hyphen=True)],
    worker: str | None = None,
    watch: str | None = None,
    band: float | None = None,
    window: float | None = None,
    yes: Annotated[bool, Parameter(negative="")] = False,
    wait: Wait = 60.0,
    connection: Connection = _HERE,
) -> None:
    """Set a knob and wait until every worker has applied it.

    Run-fenced ones can be set together: they land on all ranks at one step, or nowhere.

    Parameters
    ----------
    what
        KNOB VALUE or KNOB=VALUE, several if they are to change together; a value is a number,
        true, false, or else a text.
    worker
        Only on this worker.
    watch
        The metric by which to judge whether it hurts, and is taken back; that of the config
        unless given. Only with run-fenced knobs.
    band
        How many times its own noise the metric may lie above what it was before [3].
    window
        How long it is watched, seconds [30].
    yes
        Set it also to a number that is far off all those in use: ten times, a whole number a
        hundred times.
    """
    values = values_in("knob set", what)
    name, value = next(iter(values.items()))
    also = {knob: other for knob, other in values.items() if knob != name}
    limits = {"band": band, "window_s": window}
    given = {limit: number for limit, number in limits.items() if number is not None}
    if watch is None and given:
        raise ConfigError("knob set: need --watch with --band and --window, was nothing to watch")
    # What a guard may be, the Weaver says.
    guard = None if watch is None else Guard(metric=watch, **given)
    wish = KnobSet(knob=name, value=value, also=also, worker=worker, guard=guard, sure=yes)
    act(connection, "knob.set", wish, wait_s=wait)
    if worker is None and _is_worker_fenced(name, asyncio.run(_knobs(connection))):
        text = f"{name} is worker-fenced: each worker sets it alone, at its own next step"
        console().print(text, markup=False)


def _is_worker_fenced(name: str, table: KnobTable) -> bool:
    return any(spec.name == name and spec.fence == "worker" for spec in table.specs)


def unset_knob(name: str, /, *, worker: str | None = None, connection: Connection = _HERE) -> None:
    """Want no value of a knob any more; workers keep what they have.

    Until then every worker that registers is given the wanted value.

    Parameters
    ----------
    name
        The knob.
    worker
        Only of this worker.
    """
    act(connection, "knob.unset", KnobUnset(knob=name, worker=worker))


def take_knobs(*names: str, wait: Wait = 60.0, connection: Connection = _HERE) -> None:
    """Set what was set in an earlier job, and has waited for this since a new one began.

    Parameters
    ----------
    names
        The knobs; all that wait unless given.
    """
    table = asyncio.run(_knobs(connection))
    waiting = _waiting(table, names)
    fenced = {
        wish.knob: wish.value
        for wish in waiting
        if wish.value is not None and wish.worker is None
        if not _is_worker_fenced(wish.knob, table)
    }
    wishes = [
        KnobSet(knob=wish.knob, value=wish.value, worker=wish.worker, sure=True)
        for wish in waiting
        if wish.value is not None and (wish.worker is not None or wish.knob not in fenced)
    ]
    if fenced:
        first, *rest = fenced
        also = {knob: fenced[knob] for knob in rest}
        wishes.insert(0, KnobSet(knob=first, value=fenced[first], also=also, sure=True))
    for wish in wishes:
        act(connection, "knob.set", wish, wait_s=wait)


def drop_knobs(*names: str, connection: Connection = _HERE) -> None:
    """Forget what was set in an earlier job, and has waited since a new one began.

    Parameters
    ----------
    names
        The knobs; all that wait unless given.
    """
    for wish in _waiting(asyncio.run(_knobs(connection)), names):
        act(connection, "knob.unset", KnobUnset(knob=wish.knob, worker=wish.worker))


def _waiting(table: KnobTable, names: Collection[str]) -> list[KnobDesired]:
    waiting = [wish for wish in table.desired if wish.waits]
    known = {wish.knob for wish in waiting}
    for name in names:
        if name not in known:
            raise RequestError(
                f"no value of {name} waits from an earlier job{nearest(name, known)}"
            )
    if not waiting:
        raise RequestError("no knob's value waits from an earlier job")
    return [wish for wish in waiting if not names or wish.knob in names]


def values_in(command: str, words: Iterable[str]) -> dict[str, KnobValue]:
    """Return knobs and their values, each said as ``KNOB VALUE`` or as ``KNOB=VALUE``.

    Raises
    ------
    ConfigError
        If a value is missing, or a knob is there twice, or there is none.

    Examples
    --------
    >>> values_in("knob set", ["lr", "0.02", "mode=bf16"])
    {'lr': 0.02, 'mode': 'bf16'}
    """
    values: dict[str, KnobValue] = {}
    rest = iter(words)
    for word in rest:
        knob, is_there, text = (part.strip() for part in word.partition("="))
        value = text if is_there else next(rest, None)
        if not knob:
            raise ConfigError(f"{command}: need KNOB=VALUE, was {word!r}")
        if value is None:
            raise ConfigError(f"{command}: need a value after {knob!r}, was nothing")
        if knob in values:
            raise ConfigError(f"{command}: need each knob once, was {knob!r} twice")
        values[knob] = _parsed(value)
    if not values:
        raise ConfigError(f"{command}: need KNOB=VALUE, was nothing")
    return values


def _parsed(text: str) -> KnobValue:
    """Return what JSON makes of ``text``, or the text where that is no knob's value.

    Examples
    --------
    >>> _parsed("0.01"), _parsed("true"), _parsed("bf16")
    (0.01, True, 'bf16')
    """
    try:
        return _value_decoder.decode(text)
    except UNREADABLE:
        return text


async def _knobs(connection: Connection) -> KnobTable:
    async with open_client(connection) as client:
        return await ask_knobs(client)


def _values(table: KnobTable, knob: str) -> dict[str, KnobValue]:
    return {worker: own[knob] for worker, own in table.values.items() if knob in own}


def _desired(table: KnobTable, knob: str) -> dict[str, KnobValue]:
    return {
        d.worker or "all": d.value
        for d in table.desired
        if d.knob == knob and d.value is not None and not d.waits
    }


def _wanted(table: KnobTable, knob: str) -> str:
    desired = _desired(table, knob)
    own = [f"{w}: {_shown(v)}" for w, v in desired.items() if w != "all"]
    held = [
        f"{_shown(d.value)}{f' of {d.worker}' if d.worker else ''} of an earlier job, not set here"
        for d in table.desired
        if d.knob == knob and d.waits and d.value is not None
    ]
    of_all = [_shown(desired["all"])] if "all" in desired else []
    return ", ".join([*of_all, *own, *held]) or "-"


def _present(values: Mapping[str, KnobValue]) -> str:
    """Return the one value that all workers have, or each worker's."""
    if len(set(values.values())) == 1:  # 3 and 3.0 are one
        return _shown(next(iter(values.values())))
    return ", ".join(f"{worker}: {_shown(value)}" for worker, value in values.items()) or "-"


def _range(spec: KnobSpec) -> str:
    unit = f" {printable(spec.unit)}" if spec.unit else ""
    if spec.kind == "choice":
        return " | ".join(map(printable, spec.choices))
    if spec.low is None and spec.high is None:
        return spec.kind + unit
    low = f"{spec.low:g}" if spec.low is not None else ""
    high = f"{spec.high:g}" if spec.high is not None else ""
    return f"{spec.kind} {low}..{high}{unit}"


def _shown(value: KnobValue) -> str:
    # A line feed of a worker's own would begin a line that looks like another worker's.
    return printable(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
