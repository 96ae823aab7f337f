"""``torchloom knob list|get|set|unset|take|drop``."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from torchloom_core.cli.options import HERE, WAIT_S, AsJson, Connection, Role, Wait
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.weaver_client import act, fetch_knobs, open_client
from torchloom_core.floor.errors import ConfigError, RequestError
from torchloom_core.floor.plain_text import printable
from torchloom_core.floor.suggest import listed, nearest
from torchloom_core.wire.actions import Guard
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.knobs import find_spec
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operator import KnobSet, KnobTable, KnobUnset
from torchloom_core.wire.placement import TRAINER

_Name = Annotated[str, Parameter(help="Name of the knob.")]

_value_decoder: msgspec.json.Decoder[KnobValue] = msgspec.json.Decoder(KnobValue)


def list_knobs(*, json: AsJson = False, connection: Connection = HERE) -> None:
    """List all knobs with their range, desired value and current value."""
    table = _knobs(connection)
    if json:
        print_json(table)
        return
    parts = table.by_role()
    several = ["role"] if len(parts) > 1 else []
    rows = Table(*several, "knob", "range", "fence", "desired", "current", "meaning", box=None)
    for role, part in parts.items():
        for row in _rows(part):
            rows.add_row(*map(escape, [role, *row] if several else row))
    console().print(rows)
    if table.left_out:
        warn(f"{table.left_out} more knobs are not listed: the answer would be too large")


def _rows(table: KnobTable) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each knob of a role."""
    for spec in table.specs:
        desired, current = _desired_text(table, spec.name), _present(_values(table, spec.name))
        yield spec.name, _range(spec), spec.fence, desired, current, spec.doc
    registered = {spec.name for spec in table.specs}
    for name in sorted({desired.knob for desired in table.desired} - registered):
        yield name, "", "", _desired_text(table, name), "-", "no worker has it now"


def get_knob(
    name: _Name,
    /,
    *,
    worker: str | None = None,
    role: Role = "",
    json: AsJson = False,
    connection: Connection = HERE,
) -> None:
    """Show one knob on every worker that has it, or on one.

    Parameters
    ----------
    worker
        Show only this worker's value.
    """
    table = _of_role(_knobs(connection), name, role)
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
        desired = _desired_text(table, name)
        console().print(f"{name}: {_range(spec)}, desired {desired}", markup=False)
        for owner, value in values.items():
            console().print(f"{owner} {_shown(value)}", markup=False)


def set_knob(
    *what: Annotated[str, Parameter(allow_leading_hyphen=True)],
    worker: str | None = None,
    role: Role = "",
    watch: str | None = None,
    band: float | None = None,
    window: float | None = None,
    yes: Annotated[bool, Parameter(negative="")] = False,
    wait: Wait = WAIT_S,
    connection: Connection = HERE,
) -> None:
    """Set a knob and wait until every worker has applied it.

    Run-fenced knobs can be set together: all ranks apply them at the same step, or none does. A
    knob that workers of several roles have needs --role.

    Parameters
    ----------
    what
        KNOB VALUE or KNOB=VALUE, several to change them together. A value is a number, true,
        false or text.
    worker
        Set the knob only on this worker.
    watch
        Metric that guards the change: it is rolled back if the metric gets worse. Only for
        run-fenced knobs. Default: that of the config.
    band
        How far the metric may rise above its earlier level, in multiples of its noise. Default: 3.
    window
        How long the metric is watched, seconds. Default: 30.
    yes
        Accept a value far from those in use: a factor of 10 or more, for a whole number 100.
    """
    values = values_in("knob set", what)
    name = next(iter(values))
    limits = {"band": band, "window_s": window}
    given = {limit: number for limit, number in limits.items() if number is not None}
    if watch is None and given:
        raise ConfigError("knob set: --band and --window need --watch METRIC")
    # The Weaver validates the guard.
    guard = None if watch is None else Guard(metric=watch, **given)
    request = _together(values, worker=worker, role=role, guard=guard, sure=yes)
    act(connection, "knob.set", request, wait_s=wait)
    if worker is None and _is_worker_fenced(name, _of_role(_knobs(connection), name, role)):
        text = f"{name} is worker-fenced: each worker applies it at its own next step"
        console().print(text, markup=False)


def _together(values: Mapping[str, KnobValue], **more: Any) -> KnobSet:
    (knob, value), *also = values.items()
    return KnobSet(knob=knob, value=value, also=dict(also), **more)


def _is_worker_fenced(name: str, table: KnobTable) -> bool:
    return any(spec.name == name and spec.fence == "worker" for spec in table.specs)


def unset_knob(
    name: _Name,
    /,
    *,
    worker: str | None = None,
    role: Role = "",
    connection: Connection = HERE,
) -> None:
    """Clear a knob's desired value; workers keep their current value.

    While it is set, every worker that registers gets the desired value.

    Parameters
    ----------
    worker
        Clear only the value desired for this worker.
    """
    act(connection, "knob.unset", KnobUnset(knob=name, worker=worker, role=role))


def take_knobs(*names: str, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Apply the desired values of an earlier job, which do not apply to a new job by themselves.

    Parameters
    ----------
    names
        Names of the knobs. Default: all with a value of an earlier job.
    """
    table = _knobs(connection)
    requests: list[KnobSet] = []
    _waiting(table, names)
    for role, part in table.by_role().items():
        waiting = [one for one in part.desired if one.waits and one.knob in (names or (one.knob,))]
        fenced = {
            desired.knob: desired.value
            for desired in waiting
            if desired.value is not None and desired.worker is None
            if not _is_worker_fenced(desired.knob, part)
        }
        if fenced:
            requests.append(_together(fenced, role=role, sure=True))
        requests += [
            KnobSet(knob=one.knob, value=one.value, worker=one.worker, role=role, sure=True)
            for one in waiting
            if one.value is not None and (one.worker is not None or one.knob not in fenced)
        ]
    for request in requests:
        act(connection, "knob.set", request, wait_s=wait)


def drop_knobs(*names: str, connection: Connection = HERE) -> None:
    """Discard the desired values of an earlier job.

    Parameters
    ----------
    names
        Names of the knobs. Default: all with a value of an earlier job.
    """
    table = _knobs(connection)
    for desired in _waiting(table, names):
        role = (desired.role or TRAINER) if table.of_role else ""
        request = KnobUnset(knob=desired.knob, worker=desired.worker, role=role)
        act(connection, "knob.unset", request)


def _waiting(table: KnobTable, names: Collection[str]) -> list[KnobDesired]:
    waiting = [desired for desired in table.desired if desired.waits]
    knobs = {desired.knob for desired in waiting}
    for name in names:
        if name not in knobs:
            raise RequestError(
                f"no value of {name} is left from an earlier job{nearest(name, knobs)}"
            )
    if not waiting:
        raise RequestError("no value of a knob is left from an earlier job")
    return [desired for desired in waiting if not names or desired.knob in names]


def values_in(command: str, words: Iterable[str]) -> dict[str, KnobValue]:
    """Return knobs and their values, each written ``KNOB VALUE`` or ``KNOB=VALUE``.

    Raises
    ------
    ConfigError
        If a value is missing, a knob is given twice, or there is none.

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
            raise ConfigError(f"{command}: {knob!r} is given twice")
        values[knob] = _parsed(value)
    if not values:
        raise ConfigError(f"{command}: need KNOB=VALUE, was nothing")
    return values


def _parsed(text: str) -> KnobValue:
    """Return ``text`` parsed as JSON, or the text itself if that is no valid knob value.

    Examples
    --------
    >>> _parsed("0.01"), _parsed("true"), _parsed("bf16")
    (0.01, True, 'bf16')
    """
    try:
        return _value_decoder.decode(text)
    except UNREADABLE:
        return text


def _knobs(connection: Connection) -> KnobTable:
    async def fetched() -> KnobTable:
        async with open_client(connection) as client:
            return await fetch_knobs(client)

    return asyncio.run(fetched())


def _of_role(table: KnobTable, knob: str, role: str) -> KnobTable:
    """Return the part of the table of the role, or of the only one that has the knob.

    Raises
    ------
    RequestError
        If no role has this name, or several have the knob and none is named.
    """
    parts = table.by_role()
    if role:
        roles = table.of_role or {table.role_of(worker) for worker in table.values}
        if role not in roles:
            raise RequestError(f"no worker has role {role!r}{nearest(role, roles)}")
        return parts.get(role, table)
    having = [one for one, part in parts.items() if any(s.name == knob for s in part.specs)]
    if len(having) > 1:
        raise RequestError(f"the roles {listed(having)} have knob {knob}: name one with --role")
    return parts[having[0]] if having else table


def _values(table: KnobTable, knob: str) -> dict[str, KnobValue]:
    return {worker: own[knob] for worker, own in table.values.items() if knob in own}


def _desired(table: KnobTable, knob: str) -> dict[str, KnobValue]:
    return {
        d.worker or "all": d.value
        for d in table.desired
        if d.knob == knob and d.value is not None and not d.waits
    }


def _desired_text(table: KnobTable, knob: str) -> str:
    desired = _desired(table, knob)
    own = [f"{w}: {_shown(v)}" for w, v in desired.items() if w != "all"]
    earlier = [
        f"{_shown(d.value)}{f' of {d.worker}' if d.worker else ''} of an earlier job, not applied"
        for d in table.desired
        if d.knob == knob and d.waits and d.value is not None
    ]
    of_all = [_shown(desired["all"])] if "all" in desired else []
    return ", ".join([*of_all, *own, *earlier]) or "-"


def _present(values: Mapping[str, KnobValue]) -> str:
    """Return the value if all workers have the same, else each worker's."""
    if len(set(values.values())) == 1:  # 3 equals 3.0
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
    # Escaped: a line feed in the value could imitate the line of another worker.
    return printable(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
